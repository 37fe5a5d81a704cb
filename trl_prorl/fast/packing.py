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
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from .prefix import Layout, layout, register


# A piece is a group's rows that share one copy of the prompt; a call concatenates pieces.
Piece = list[int]
Call = list[Piece]


def packed_logps(
    model: Callable,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    logits_to_keep: int,
    max_tokens: int | None = None,
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
        max_tokens (`int`, *optional*): Maximum tokens per call; by default there is one call. Processes that train one
            model deadlock unless they make equally many calls (DDP synchronises buffers in every call, a sharded model
            its weights); a limit does not ensure that.
        compute_entropy (`bool`, *optional*, defaults to `False`): Whether to return the entropies too.
        autocast (`Callable`, *optional*, defaults to `nullcontext`):
            Context of a call, such as `accelerator.autocast`.

    Returns `tuple` of two `torch.Tensor` of shape `(B, C)`: log-probabilities and entropies (`None` without
    `compute_entropy`), exactly 0 at masked tokens, like TRL's. Raises `ValueError`: the mask has another form, or a
    prompt with one completion exceeds `max_tokens`.
    """
    plan = PackedBatch.from_batch(input_ids, attention_mask, logits_to_keep, max_tokens)
    return plan.score(model, compute_entropy, autocast)


class PackedScorer:
    """Scores micro-batches like TRL's `GRPOTrainer._get_per_token_logps_and_entropies`, from packed rows."""

    def __init__(self, max_tokens: int | None, autocast: Callable[[], AbstractContextManager]):
        self.max_tokens = max_tokens
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
        **others,
    ) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        """
        Score a batch. `plan_key`: a tensor that identifies it, with its lifetime. Raises `ValueError`: the batch is
        not only text.
        """
        given = sorted(name for name, value in others.items() if value is not None and value is not False)
        if given:
            raise ValueError(
                f'pack_groups supports text only; the batch has {", ".join(given)}. Set pack_groups: "off".'
            )
        size = batch_size or len(input_ids)
        plans_by_size = {} if plan_key is None else self._plans.setdefault(plan_key, {})
        if size not in plans_by_size:  # all plans before the first forward, because planning synchronizes
            batches = zip(input_ids.split(size), attention_mask.split(size), strict=True)
            plans_by_size[size] = [
                PackedBatch.from_batch(ids, mask, logits_to_keep, self.max_tokens) for ids, mask in batches
            ]
        scored = [plan.score(model, compute_entropy, self.autocast) for plan in plans_by_size[size]]
        logps = torch.cat([logps for logps, _ in scored])
        entropies = torch.cat([entropies for _, entropies in scored]) if compute_entropy else None
        return logps, entropies, None


@dataclass(frozen=True)
class PackedCall:
    """
    One call's packed row on the device.

    Attributes:
        inputs (`dict[str, torch.Tensor]`): The model's other inputs, of shape `(1, T)`.
        layout ([`~trl_prorl.fast.prefix.Layout`]): The row's sequences.
        scored (`torch.LongTensor` of shape `(N,)`): Places of the scored tokens among T - 1 log-probabilities.
        results (`torch.LongTensor` of shape `(N,)`): Their places in the flattened `(B, C)` result.
    """

    inputs: dict[str, torch.Tensor]
    layout: Layout
    scored: torch.Tensor
    results: torch.Tensor


@dataclass(frozen=True)
class PackedBatch:
    """A packed batch of `shape` (B, C), for every model that scores it."""

    calls: list[PackedCall]
    shape: tuple[int, int]

    @classmethod
    def from_batch(
        cls, input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int, max_tokens: int | None
    ) -> "PackedBatch":
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
        calls = plan_calls(list(groups.values()), prompts, completions, max_tokens)
        packed = [pack(call, input_ids, prompts, completions, logits_to_keep) for call in calls]
        return cls(packed, (batch, logits_to_keep))

    def score(
        self, model: Callable, compute_entropy: bool, autocast: Callable[[], AbstractContextManager]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        register()
        places = []
        logps = []
        entropies = []
        for call in self.calls:
            # Additive masks are large: they live with this forward's graph.
            prefix_layout = call.layout._replace(added={})
            with autocast():
                outputs = model(**call.inputs, prefix_layout=prefix_layout, fused_lm_head=True)
            device = outputs.log_probs.device  # the head's, which may differ from the batch's
            scored = call.scored.to(device)
            places.append(call.results.to(device))
            logps.append(outputs.log_probs[0].index_select(0, scored))
            if compute_entropy:
                entropies.append(outputs.entropy[0].index_select(0, scored))
        logps = self._in_rows(logps, places)
        return logps, self._in_rows(entropies, places) if compute_entropy else None

    def _in_rows(self, values: list[torch.Tensor], places: list[torch.Tensor]) -> torch.Tensor:
        zeros = values[0].new_zeros(math.prod(self.shape))
        return zeros.index_copy(0, torch.cat(places), torch.cat(values)).view(self.shape)


def pack(
    call: Call, input_ids: torch.Tensor, prompts: list[int], completions: list[int], logits_to_keep: int
) -> PackedCall:
    """Pack the rows of one call. `prompts` and `completions`: tokens of every row."""
    width = input_ids.shape[1]
    start = width - logits_to_keep  # first column of the completions
    taken = []  # spans of the row: first place in the flattened batch, first position, length
    scored = []  # completions: first place among the log-probabilities, first place in the result, length
    sequences = []  # for `layout`: first place and length of the prefix, and of the sequence itself
    end = 0
    for piece in call:
        first = piece[0]
        prompt_start = end
        prompt_length = prompts[first] - 1  # every completion has its own copy of the last token
        taken.append((first * width + start - 1 - prompt_length, 0, prompt_length))
        sequences.append((prompt_start, 0, prompt_start, prompt_length))
        end += prompt_length
        for row in piece:
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
    return PackedCall(inputs, layout(sequences, device), scored_places, results)


def join_stretches(stretches: list[tuple[int, ...]]) -> torch.Tensor:
    """Concatenate ranges, each of M first numbers and a length: `(M, sum of the lengths)`."""
    joined = [np.array(firsts)[:, None] + np.arange(length) for *firsts, length in stretches]
    return torch.from_numpy(np.concatenate(joined, axis=1))


def plan_calls(groups: list[Piece], prompts: list[int], completions: list[int], max_tokens: int | None) -> list[Call]:
    """
    Choose the rows of each call by first-fit decreasing. Rows of a prompt are separated only if they exceed
    `max_tokens`. Raises `ValueError`: a prompt with one completion exceeds it.
    """

    def length(piece: Piece) -> int:
        prompt = prompts[piece[0]] - 1
        return prompt + sum(completions[row] + 1 for row in piece)

    limit = sys.maxsize if max_tokens is None else max_tokens
    longest = max(length([row]) for group in groups for row in group)
    if longest > limit:
        raise ValueError(
            f"pack_max_tokens={max_tokens} is smaller than a prompt with one completion ({longest} tokens): raise "
            "it, or lower max_completion_length."
        )
    pieces = []
    for group in groups:
        room = limit - prompts[group[0]] + 1
        pieces += first_fit(group, lambda row: completions[row] + 1, room)
    return first_fit(pieces, length, limit)


def first_fit(items: list, size: Callable[..., int], capacity: int) -> list[list]:
    """Distribute items over bins of a `capacity`, by first-fit decreasing."""
    bins = []
    room = []
    for item in sorted(items, key=size, reverse=True):
        fitting = [place for place, free in enumerate(room) if free >= size(item)]
        if fitting:
            place = fitting[0]
        else:
            place = len(bins)
            bins.append([])
            room.append(capacity)
        bins[place].append(item)
        room[place] -= size(item)
    return bins
