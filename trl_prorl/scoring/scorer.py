"""
Who scores a batch, how cheaply, and how often: the policy, and the anchors of its KL terms, each by its name.

TRL asks for log-probabilities in three places: for π_old and for the reference while it makes a generation batch, and
for the policy in its loss. Wherever that is sound, its first two requests get an empty answer, and the finished batch
is scored under each anchor that it still lacks.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from ..objective.anchors import completion_mask, counted, logps_key
from .packing import packed_logps
from .references import Reference


@dataclass
class PolicyPass:
    """
    One scoring of a micro-batch by the policy, inside TRL's loss.

    Attributes:
        rows (`torch.Tensor` of shape `(R,)`, *optional*): The rows to compute; `None` means all.
        fill (`torch.Tensor` of shape `(B, T)`, *optional*): Log-probabilities for rows that are left out.
        mask (`torch.Tensor` of shape `(B, T)`, *optional*): 1 where a token counts in the loss; elsewhere
            log-probabilities become 0.
        logps, entropies (`torch.Tensor` of shape `(B, T)`): The result, once the micro-batch is scored.
    """

    rows: torch.Tensor | None = None
    fill: torch.Tensor | None = None
    mask: torch.Tensor | None = None
    logps: torch.Tensor | None = None
    entropies: torch.Tensor | None = None


class Scorer:
    """
    Log-probabilities of completions, with a count for each model that gives them. `args`, `meter`: what to cache,
    reuse or defer; calls and seconds. `packs`: whether prompts are computed once for all their completions.
    `text_only`: whether a batch is token ids alone, so that it can be scored again from the buffer. `autocast`: the
    context of a forward. `models`: which model scores as the anchor of a name.
    """

    def __init__(
        self,
        args,
        meter,
        packs: bool,
        text_only: bool,
        autocast: Callable[[], AbstractContextManager] = nullcontext,
        models: Mapping[str, Reference | None] = MappingProxyType({}),
    ):
        self.args, self.meter, self.packs, self.text_only, self.autocast = args, meter, packs, text_only, autocast
        self.models = models
        self._loss: PolicyPass | None = None  # while TRL computes its loss
        self._samples = False  # while TRL makes a generation batch

    def asked_by_trl(self, plain: Callable, model: Callable, training: bool, *args, **kwargs) -> tuple:
        """
        The answer to TRL's `_get_per_token_logps_and_entropies` (`plain`) for a model that scores. Calls of an
        evaluation are not counted.
        """
        if not self._samples:
            return self._of_policy(plain, model, training, *args, **kwargs)
        ref = self.models.get("ref")
        name = "ref" if ref is not None and ref.scores_as(model) else "old"
        if self.leaves_out(name):
            return None, None, None
        return self._counted(name, plain, model, *args, **kwargs)

    # Requests of TRL while it makes a generation batch.

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """The context in which TRL makes a generation batch, and asks for its anchors; other requests are a user's."""
        self._samples = True
        try:
            yield
        finally:
            self._samples = False

    def leaves_out(self, name: str) -> bool:
        """Whether TRL's own scoring under `"old"` or `"ref"` gets an empty answer."""
        args = self.args
        if name == "old" and args.old_logps_source == "first_pass":
            return True  # the loss provides π_old's
        if name == "ref" and args.ref_compute == "naive_epoch":
            return True  # every inner pass scores the reference
        # TRL's correction of the sampler needs π_old immediately.
        asked_at_once = name == "old" and args.corrects_sampler
        return self.text_only and not args.is_trl and not asked_at_once

    def missing(self, batch: Mapping[str, Any], base_acts: bool) -> list[str]:
        """The anchors that still have to score a finished generation batch."""
        args = self.args
        scores_ref = args.beta != 0.0 and args.ref_compute == "cached"
        needed = {"old": args.old_logps_source == "forward", "ref": scores_ref, "base": base_acts}
        return [name for name, is_needed in needed.items() if is_needed and logps_key(name) not in batch]

    # Requests of TRL in its loss.

    def pass_over(self, batch: Mapping[str, torch.Tensor], needs_all: bool) -> PolicyPass:
        """
        A pass over the rows that carry a gradient, if `skip_zero_rows` asks for it and nothing needs all of them.
        π_old's log-probabilities stand in for those of the others.
        """
        if not self.args.skip_zero_rows:
            return PolicyPass(mask=completion_mask(batch))
        scored = torch.ones_like(batch["advantages"], dtype=torch.bool) if needs_all else scored_rows(batch)
        self.meter.add_count("rows_skipped", (~scored).sum())
        if scored.all():
            return PolicyPass(mask=completion_mask(batch))
        return PolicyPass(scored.nonzero().squeeze(1), batch.get(logps_key("old")), completion_mask(batch))

    @contextmanager
    def policy_pass(self, policy_pass: PolicyPass) -> Iterator[PolicyPass]:
        """The context in which TRL's loss scores a micro-batch; the yielded object holds the result."""
        self._loss = policy_pass
        try:
            yield self._loss
        finally:
            self._loss = None

    def _of_policy(self, plain: Callable, model: Callable, counts: bool, *args, **kwargs) -> tuple:
        current = self._loss or PolicyPass()
        score = self._packed if self.packs else plain
        if counts:
            model = self.meter.counted(model, "policy")
        if current.rows is None:
            result = score(model, *args, **kwargs)
        else:
            result = self._some_rows(score, current, model, *args, **kwargs)
        logps, entropies, aux_loss = result
        if current.mask is not None:
            logps = counted(logps, current.mask)
        current.logps = logps
        current.entropies = entropies
        return logps, entropies, aux_loss

    # Scoring without TRL.

    @torch.no_grad()
    def score(
        self, name: str, plain: Callable, policy: Callable, batch: Mapping[str, Any], size: int | None
    ) -> torch.Tensor:
        """
        Log-probabilities of a batch under the anchor `"old"`, `"ref"` or `"base"`, shape `(B, T)`, by TRL's method
        `plain`, `size` rows in a forward. `policy` is the policy as it is wrapped; prompts and completions have shapes
        `(B, P)` and `(B, T)`.
        """
        unsupported = [key for key in batch if key in ("pixel_values", "num_images", "token_type_ids")]
        if unsupported:
            raise ValueError(f"ref_compute='naive_epoch' and beta_base score text only; the batch has {unsupported}.")
        tokens = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        # Before the first update on its samples the policy itself is π_old.
        with nullcontext(policy) if name == "old" else self.models[name].active(policy) as model:
            return self._counted(name, plain, model, tokens, mask, batch["completion_ids"].size(1), batch_size=size)[0]

    def _counted(self, name: str, plain: Callable, model: Callable, *args, **kwargs) -> tuple:
        """One scoring under an anchor, as a stage of its own."""
        score = self._packed if self.packs else plain
        with self.meter.timer.stage(name):
            return score(self.meter.counted(model, name), *args, **kwargs)

    def _packed(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **others
    ) -> tuple:
        """TRL's result from packed rows, a micro-batch at a time."""
        asked = sorted(name for name, value in others.items() if value is not None and value is not False)
        if asked:
            raise ValueError(
                f"pack_groups={self.args.pack_groups!r} packs text alone; the batch has {', '.join(asked)}."
            )
        size, settings = batch_size or len(input_ids), (self.args.pack_max_tokens, compute_entropy, self.autocast)
        chunks = zip(input_ids.split(size), attention_mask.split(size), strict=True)
        scored = [packed_logps(model, ids, mask, logits_to_keep, *settings) for ids, mask in chunks]
        logps, entropies = zip(*scored, strict=True)
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None

    @staticmethod
    def _some_rows(score, current: PolicyPass, model, input_ids, attention_mask, logits_to_keep, **kwargs) -> tuple:
        """
        Score the rows that carry a gradient. The others get the old policy's log-probabilities, a ratio of 1, and the
        mean entropy of the computed rows, which leaves the mean as it is.
        """
        rows = current.rows
        logps, entropies, aux_loss = score(model, input_ids[rows], attention_mask[rows], logits_to_keep, **kwargs)
        mask = current.mask[rows]
        mean_entropy = (entropies * mask).sum() / mask.sum().clamp(min=1)
        shape = (len(input_ids), logits_to_keep)
        fill = logps.new_zeros(shape) if current.fill is None else current.fill.to(logps.dtype)
        return fill.index_copy(0, rows, logps), mean_entropy.expand(shape).index_copy(0, rows, entropies), aux_loss


def scored_rows(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """
    The rows that carry a gradient where no penalty acts, bools of shape `(B,)`: those with an advantage other than 0
    or, if there are none, the shortest row, because the backward pass (and the other processes in it) needs a
    gradient, even one of zero.
    """
    scored = batch["advantages"] != 0.0
    if not scored.any():
        scored[batch["completion_mask"].sum(dim=1).argmin()] = True
    return scored
