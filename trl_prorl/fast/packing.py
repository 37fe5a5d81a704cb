"""
Log-probabilities of completions, with every prompt computed once and no padding.

Each completion sees only its prompt and itself:

    tokens      a b c | d x1 x2 | d y1 y2 y3        prompt a b c d, completions x1 x2 and y1 y2 y3
    positions   0 1 2 | 3 4  5  | 3 4  5  6
    labels      - - - | - x1 x2 | - y1 y2 y3

Every completion starts with *its own copy of the prompt's last token*: TRL's fused LM head expects a label one place
to the right of the state that predicts it. Values and gradients are TRL's up to rounding.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from .prefix import Layout, layout, register


def packed_logps(
    model: Callable,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    logits_to_keep: int,
    compute_entropy: bool = False,
    autocast: Callable[[], AbstractContextManager] = nullcontext,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """
    Compute per-token log-probabilities and entropies of completions, with gradient, as TRL's
    `GRPOTrainer._get_per_token_logps_and_entropies` does.

    Completions without tokens are not computed; if there are no others, one prompt is computed, so the returned zeros
    have a gradient.

    Args:
        model (`Callable`): A causal language model with TRL's fused LM head (`trl.trainer.utils.add_fused_lm_head`),
            or a function that calls it.
        input_ids (`torch.Tensor` of shape `(B, P + C)`):
            Prompts padded on the left, then completions padded on the right.
        attention_mask (`torch.Tensor` of shape `(B, P + C)`): 1 for tokens that count.
        logits_to_keep (`int`): C.
        compute_entropy (`bool`, *optional*, defaults to `False`): Whether to return the entropies too.
        autocast (`Callable`, *optional*, defaults to `nullcontext`):
            Context of a call, such as `accelerator.autocast`.

    Returns `tuple` of two `torch.Tensor` of shape `(B, C)`: log-probabilities and entropies (`None` without
    `compute_entropy`), exactly 0 at masked tokens, like TRL's. Raises `ValueError`: the mask has another form.
    """
    plan = PackedBatch.from_batch(input_ids, attention_mask, logits_to_keep)
    return plan.score(model, compute_entropy, autocast)


class PackedScorer:
    """Scores micro-batches like TRL's `GRPOTrainer._get_per_token_logps_and_entropies`, from packed rows."""

    def __init__(self, autocast: Callable[[], AbstractContextManager]):
        self.autocast = autocast
        # Plans of batches in use, by one of each batch's tensors: planning synchronizes, and several models score a
        # batch.
        self._plans = WeakTensorKeyDictionary()

    def __call__(
        self,
        model: Callable,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        plan_key: torch.Tensor | None = None,
        **columns,
    ) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        """
        Score a batch. `plan_key`: a tensor that identifies it, with its lifetime. Raises `ValueError`: the batch is
        not only text.
        """
        more = sorted(name for name, value in columns.items() if value is not None and value is not False)
        if more:
            raise ValueError(
                f'pack_groups supports text only; the batch has {", ".join(more)}. Set pack_groups: "off".'
            )
        size = batch_size or len(input_ids)
        plans_by_size = {} if plan_key is None else self._plans.setdefault(plan_key, {})
        if size not in plans_by_size:  # all plans before the first forward, because planning synchronizes
            batches = zip(input_ids.split(size), attention_mask.split(size), strict=True)
            plans_by_size[size] = [PackedBatch.from_batch(ids, mask, logits_to_keep) for ids, mask in batches]
        scored = [plan.score(model, compute_entropy, self.autocast) for plan in plans_by_size[size]]
        logps = torch.cat([logps for logps, _ in scored])
        entropies = torch.cat([entropies for _, entropies in scored]) if compute_entropy else None
        return logps, entropies, None


@dataclass(frozen=True)
class PackedBatch:
    """
    A batch in one packed row on the device, for every model that scores it.

    Attributes:
        inputs (`dict[str, torch.Tensor]`): The model's other inputs, of shape `(1, T)`.
        layout ([`~trl_prorl.fast.prefix.Layout`]): The row's sequences.
        scored (`torch.LongTensor` of shape `(N,)`): Places of the scored tokens among T - 1 log-probabilities.
        results (`torch.LongTensor` of shape `(N,)`): Their places in the flattened `(B, C)` result.
        shape (`tuple[int, int]`): B and C.
    """

    inputs: dict[str, torch.Tensor]
    layout: Layout
    scored: torch.Tensor
    results: torch.Tensor
    shape: tuple[int, int]

    @classmethod
    def from_batch(cls, input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int) -> "PackedBatch":
        """Arguments as in [`packed_logps`]. Synchronizes with the device; scoring does not."""
        batch, width = input_ids.shape
        prompt_width = width - logits_to_keep
        both = torch.stack([input_ids, attention_mask.to(input_ids.dtype)]).cpu()
        token_ids, mask = both.numpy()
        prompt_mask, completion_mask = np.split(mask, [prompt_width], axis=1)
        has_prompts = prompt_mask[:, -1].all()
        pads_left = (np.diff(prompt_mask) >= 0).all()
        pads_right = (np.diff(completion_mask) <= 0).all()
        if not (has_prompts and pads_left and pads_right):
            raise ValueError(
                "attention_mask: prompts must be padded on the left and not empty, completions on the right."
            )
        prompts = prompt_mask.sum(1).tolist()
        completions = completion_mask.sum(1).tolist()

        rows = [row for row in range(batch) if completions[row] > 0]
        if not rows:
            rows = [0]
        groups: dict[tuple[int, ...], list[int]] = {}
        prompt_ids = token_ids[:, :prompt_width].tolist()
        for row in rows:
            prompt = tuple(prompt_ids[row][-prompts[row] :])
            groups.setdefault(prompt, []).append(row)
        longest_first = sort_groups(list(groups.values()), prompts, completions)
        return cls(*pack(longest_first, input_ids, prompts, completions, logits_to_keep), (batch, logits_to_keep))

    def score(
        self, model: Callable, compute_entropy: bool, autocast: Callable[[], AbstractContextManager]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        register()
        # Additive masks are large: they live with this forward's graph.
        prefix_layout = self.layout._replace(added={})
        with autocast():
            outputs = model(**self.inputs, prefix_layout=prefix_layout, fused_lm_head=True)
        logps = self._in_rows(outputs.log_probs)
        return logps, self._in_rows(outputs.entropy) if compute_entropy else None

    def _in_rows(self, values: torch.Tensor) -> torch.Tensor:
        device = values.device  # the head's, which may differ from the batch's
        scored = values[0].index_select(0, self.scored.to(device))
        zeros = scored.new_zeros(math.prod(self.shape))
        return zeros.index_copy(0, self.results.to(device), scored).view(self.shape)


def sort_groups(groups: list[list[int]], prompts: list[int], completions: list[int]) -> list[list[int]]:
    """Sort the rows of each prompt, and then the prompts, by tokens, most first: masks then have few blocks."""

    def length(group: list[int]) -> int:
        return prompts[group[0]] + sum(completions[row] + 1 for row in group)

    by_completion = [sorted(group, key=completions.__getitem__, reverse=True) for group in groups]
    return sorted(by_completion, key=length, reverse=True)


def pack(
    groups: list[list[int]],
    input_ids: torch.Tensor,
    prompts: list[int],
    completions: list[int],
    logits_to_keep: int,
) -> tuple[dict[str, torch.Tensor], Layout, torch.Tensor, torch.Tensor]:
    """
    Pack the rows of each prompt. `prompts` and `completions`: tokens of every row. Returns the first four fields of a
    [`PackedBatch`].
    """
    width = input_ids.shape[1]
    start = width - logits_to_keep  # first column of the completions
    taken = []  # spans of the row: first place in the flattened batch, first position, length
    scored = []  # completions: first place among the log-probabilities, first place in the result, length
    sequences = []  # for `layout`: first place and length of the prefix, and of the sequence itself
    end = 0
    for group in groups:
        first = group[0]
        prompt_start = end
        prompt_length = prompts[first] - 1  # every completion has its own copy of the last token
        taken.append((first * width + start - 1 - prompt_length, 0, prompt_length))
        sequences.append((prompt_start, 0, prompt_start, prompt_length))
        end += prompt_length
        for row in group:
            length = completions[row] + 1
            taken.append((row * width + start - 1, prompt_length, length))
            sequences.append((prompt_start, prompt_length, end, length))
            scored.append((end, row * logits_to_keep, length - 1))
            end += length

    device = input_ids.device
    source, positions = join_stretches(taken).to(device)
    scored_places, results = join_stretches(scored).to(device)
    tokens = input_ids.flatten()[source]
    inputs = {
        "input_ids": tokens[None],
        "position_ids": positions[None],
        "labels": tokens.masked_fill(source % width < start, -100)[None],
        # This dummy keeps transformers from making a mask, and makes attention without `prefix_layout` fail.
        "attention_mask": torch.zeros(1, 1, 1, 1, dtype=torch.long, device=device),
    }
    return inputs, layout(sequences, device), scored_places, results


def join_stretches(stretches: list[tuple[int, ...]]) -> torch.Tensor:
    """Concatenate ranges, each of M first numbers and a length: `(M, sum of the lengths)`."""
    joined = [np.array(firsts)[:, None] + np.arange(length) for *firsts, length in stretches]
    return torch.from_numpy(np.concatenate(joined, axis=1))
