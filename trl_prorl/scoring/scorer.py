"""
Who scores a batch, how cheaply, and how often: the policy in TRL's loss, and the anchors of its KL terms.

TRL asks for log-probabilities in three places: for π_old and for the reference while it makes a generation batch, and
for the policy in its loss. Wherever that is sound, its first two requests get an empty answer, and the finished batch
is scored under each anchor that it still lacks:

    TRL makes a generation batch ── asks for π_old, π_ref ──→ answer_request    log-probabilities, or nothing
    the batch is finished ────────────────────────────────→ score_anchor       once for each anchor that it lacks
    TRL computes its loss ────────── asks for the policy ────→ score_policy      the rows of a `PolicyPass`
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from ..errors import InputError
from ..objective.anchors import Anchor
from ..objective.masks import zero_masked
from ..objective.penalties import Anchors
from ..upstream import misfit
from .packing import Plan, packed_logps


@dataclass
class PolicyPass:
    """
    Describes one scoring of a micro-batch by the policy: B rows, T tokens. TRL's loss asks for it without saying what
    we need to know, so the trainer keeps this object while TRL computes its loss.

    Attributes:
        beta (`float`): What TRL's loss adds of the KL to the reference: 0 where we add it.
        mask (`torch.Tensor` of shape `(B, T)`, *optional*): 1 where a token counts in the loss; elsewhere
            log-probabilities become 0.
        rows (`torch.Tensor` of shape `(R,)`, *optional*): The rows to compute; `None` means all.
        plan_key (`torch.Tensor`, *optional*): Lives as long as the micro-batch, and says that it is the same one: as
            long the plan of its packed rows is kept.
        fill (`torch.Tensor` of shape `(B, T)`, *optional*): Log-probabilities for rows that are left out.
        logps, entropies (`torch.Tensor` of shape `(B, T)`): The result, once the micro-batch is scored.
    """

    beta: float = 0.0
    mask: torch.Tensor | None = None
    rows: torch.Tensor | None = None
    plan_key: torch.Tensor | None = None
    fill: torch.Tensor | None = None
    logps: torch.Tensor | None = None
    entropies: torch.Tensor | None = None


class Scorer:
    """
    Scores completions, and counts the calls of each model that does.

    Args:
        args ([`ProRLConfig`]): What to cache, reuse or defer.
        meter ([`~trl_prorl.record.meter.Meter`]): Counts calls and seconds.
        anchors ([`~trl_prorl.objective.penalties.Anchors`]): The anchors, with their models.
        packs (`bool`): Whether prompts are computed once for all their completions.
        text_only (`bool`): Whether a batch is token ids alone, so that it can be scored again from the buffer.
        autocast (`Callable`, *optional*): Makes the context of a forward.
    """

    def __init__(
        self,
        args,
        meter,
        anchors: Anchors,
        packs: bool,
        text_only: bool,
        autocast: Callable[[], AbstractContextManager] = nullcontext,
    ):
        self.args = args
        self.meter = meter
        self.anchors = anchors
        self.packs = packs
        self.text_only = text_only
        self.autocast = autocast
        self.makes_batch = False  # whether TRL makes a generation batch
        # Of batches that are still in use, by a tensor that each of them holds: several models score the same rows,
        # and the policy does so in every pass. To plan them, and to choose rows, the host waits for the device.
        self._plans = WeakTensorKeyDictionary()
        self._rows = WeakTensorKeyDictionary()

    # Requests of TRL while it makes a generation batch.

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Take requests for those of TRL that makes a generation batch, while this lasts: they are for anchors."""
        self.makes_batch = True
        try:
            yield
        finally:
            self.makes_batch = False

    def answer_request(self, trl_score: Callable, model: Callable, *args, **kwargs) -> tuple:
        """
        Answer TRL's request for π_old or the reference. It does not say for which of them: the model that it would
        call does.

        Args:
            trl_score (`Callable`): TRL's `_get_per_token_logps_and_entropies`.
            model (`Callable`): The model that TRL would score with, and after it TRL's other arguments.

        Returns `tuple`: TRL's result, three times `None` where the log-probabilities come later.
        """
        reference = self.anchors["ref"]
        anchor = self.anchors["old"]
        if reference.model is not None and reference.model.scores_as(model):
            anchor = reference
        if self.comes_later(anchor):
            return None, None, None
        return self._score_counted(anchor, trl_score, model, *args, **kwargs)

    def comes_later(self, anchor: Anchor) -> bool:
        """
        Return whether TRL needs no log-probabilities of an anchor yet: the loss or the finished batch provides them.
        """
        if anchor.is_left_to_loss:
            return True
        can_wait = self.text_only and not self.args.is_trl
        return can_wait and not anchor.is_needed_at_once

    # A request of TRL in its loss.

    def rows_to_score(self, batch: Mapping[str, torch.Tensor], needs_all: bool) -> torch.Tensor | None:
        """
        Choose the rows of a micro-batch of training that the policy computes: those that carry a gradient, if
        `skip_zero_rows` asks for it and nothing needs all of them. Returns places of shape `(R,)`; `None` means all.
        """
        if not self.args.skip_zero_rows:
            return None
        advantages = batch["advantages"]
        if needs_all:
            has_gradient = torch.ones_like(advantages, dtype=torch.bool)
        else:
            has_gradient = rows_with_gradient(batch)
        self.meter.add_count("rows_skipped", (~has_gradient).sum())
        if needs_all:
            return None
        if advantages not in self._rows:
            number = int(has_gradient.sum())
            rows = None
            if number < len(advantages):
                rows = has_gradient.argsort(descending=True, stable=True)[:number]
            self._rows[advantages] = rows
        return self._rows[advantages]

    def score_policy(
        self, policy_pass: PolicyPass, counts: bool, trl_score: Callable, model: Callable, *args, **kwargs
    ) -> tuple:
        """
        Score a micro-batch by the policy, and keep the result in its [`PolicyPass`].

        Args:
            policy_pass ([`PolicyPass`]): What is asked for.
            counts (`bool`): Whether the record counts the call; those of an evaluation it does not.
            trl_score, model: As in [`Scorer.answer_request`].

        Returns `tuple`: TRL's result: log-probabilities and entropies `(B, T)`, and TRL's load-balancing loss. Raises
        `ValueError`: TRL's loss asks for a part of the micro-batch, or asks twice.
        """
        score = partial(self._score_packed, plan_key=policy_pass.plan_key) if self.packs else trl_score
        if counts:
            model = self.meter.counted(model, "policy")
        if policy_pass.rows is None:
            logps, entropies, aux_loss = score(model, *args, **kwargs)
        else:
            logps, entropies, aux_loss = self._score_some_rows(score, policy_pass, model, *args, **kwargs)
        if policy_pass.mask is not None:
            if policy_pass.logps is not None or logps.shape != policy_pass.mask.shape:
                raise InputError(misfit("trl", "its loss scores a micro-batch in parts"))
            logps = zero_masked(logps, policy_pass.mask)
        policy_pass.logps = logps
        policy_pass.entropies = entropies
        return logps, entropies, aux_loss

    @staticmethod
    def _score_some_rows(
        score, policy_pass: PolicyPass, model, input_ids, attention_mask, logits_to_keep, **kwargs
    ) -> tuple:
        """
        Score the rows that carry a gradient. The others get the old policy's log-probabilities, a ratio of 1, and the
        mean entropy of the computed rows, which leaves the mean as it is.
        """
        rows = policy_pass.rows
        some_logps, some_entropies, aux_loss = score(
            model, input_ids[rows], attention_mask[rows], logits_to_keep, **kwargs
        )
        mask = policy_pass.mask[rows]
        mean_entropy = (some_entropies * mask).sum() / mask.sum().clamp(min=1)
        shape = (len(input_ids), logits_to_keep)
        if policy_pass.fill is None:
            fill = some_logps.new_zeros(shape)
        else:
            fill = policy_pass.fill.to(some_logps.dtype)
        logps = fill.index_copy(0, rows, some_logps)
        entropies = mean_entropy.expand(shape).index_copy(0, rows, some_entropies)
        return logps, entropies, aux_loss

    # Scoring without TRL.

    @torch.no_grad()
    def score_anchor(
        self, anchor: Anchor, trl_score: Callable, policy: Callable, batch: Mapping[str, Any], size: int | None
    ) -> torch.Tensor:
        """
        Score a batch under an anchor.

        Args:
            anchor ([`~trl_prorl.objective.anchors.Anchor`]): Whose model scores.
            trl_score (`Callable`): TRL's `_get_per_token_logps_and_entropies`.
            policy (`Callable`): The policy as it is wrapped.
            batch (`Mapping`): Prompts `(B, P)` and completions `(B, T)`, each with its mask.
            size (`int`, *optional*): Rows in a forward; all by default.

        Returns `torch.Tensor` of shape `(B, T)`: Log-probabilities, in nats. Raises `ValueError`: the batch has more
        than text.
        """
        unsupported = [key for key in batch if key in ("pixel_values", "num_images", "token_type_ids")]
        if unsupported:
            raise ValueError(
                f"ref_compute='naive_epoch' and beta_base support text only; the batch has {unsupported}."
            )
        tokens = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        length = batch["completion_ids"].size(1)
        with anchor.model.active(policy) as model:
            logps, _, _ = self._score_counted(
                anchor, trl_score, model, tokens, mask, length, batch_size=size, plan_key=batch["completion_mask"]
            )
        return logps

    def _score_counted(
        self,
        anchor: Anchor,
        trl_score: Callable,
        model: Callable,
        *args,
        plan_key: torch.Tensor | None = None,
        **kwargs,
    ) -> tuple:
        """Score once under an anchor, as a stage of its own."""
        score = partial(self._score_packed, plan_key=plan_key) if self.packs else trl_score
        with self.meter.timer.stage(anchor.name):
            return score(self.meter.counted(model, anchor.name), *args, **kwargs)

    def _score_packed(
        self,
        model,
        input_ids,
        attention_mask,
        logits_to_keep,
        batch_size=None,
        compute_entropy=False,
        plan_key=None,
        **others,
    ) -> tuple:
        """Compute TRL's result from packed rows, a micro-batch at a time; `plan_key` as in [`PolicyPass`]."""
        given = sorted(name for name, value in others.items() if value is not None and value is not False)
        if given:
            raise ValueError(
                f"pack_groups={self.args.pack_groups!r} supports text only; the batch has {', '.join(given)}."
            )
        size = batch_size or len(input_ids)
        batches = list(zip(input_ids.split(size), attention_mask.split(size), strict=True))
        plans_by_size = {}
        if plan_key is not None:
            plans_by_size = self._plans.setdefault(plan_key, plans_by_size)
        if size not in plans_by_size:  # all of them before the first forward, for which the host would wait
            plans_by_size[size] = [
                Plan.of(ids, mask, logits_to_keep, self.args.pack_max_tokens) for ids, mask in batches
            ]
        all_logps = []
        all_entropies = []
        for (ids, mask), plan in zip(batches, plans_by_size[size], strict=True):
            logps, entropies = packed_logps(
                model, ids, mask, logits_to_keep, self.args.pack_max_tokens, compute_entropy, self.autocast, plan
            )
            all_logps.append(logps)
            all_entropies.append(entropies)
        if len(batches) == 1:  # as in a loss
            return logps, entropies, None
        entropies = torch.cat(all_entropies) if compute_entropy else None
        return torch.cat(all_logps), entropies, None


def rows_with_gradient(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """
    Find the rows that carry a gradient where no penalty acts: those with an advantage other than 0 or, if there are
    none, the shortest row, because the backward pass (and the other processes in it) needs a gradient, even one of
    zero. Returns bools of shape `(B,)`.
    """
    has_gradient = batch["advantages"] != 0.0
    shortest = batch["completion_mask"].sum(dim=1).argmin()
    is_shortest = torch.arange(len(has_gradient), device=has_gradient.device) == shortest
    return has_gradient | (is_shortest & ~has_gradient.any())
