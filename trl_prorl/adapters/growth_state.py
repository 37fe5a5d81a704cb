"""
An optimizer's memory of a LoRA factor whose rank changes: pure functions on one parameter's state.

An old row of A, and an old column of B, keeps m and v; a new one begins with 0. The step count t is one number for the
whole tensor, so that new ranks have the old one. With a gradient g their first update, the t-th of the tensor, is
therefore the learning rate times

    (1 − β1) g / (1 − β1^t) / √((1 − β2) g² / (1 − β2^t)) = (1 − β1) / √(1 − β2) · √(1 − β2^t) / (1 − β1^t)

which for large t is 0.1 / √0.001 = 3.16, and under a constant gradient grows to 6.57 by the 12th update. A's new rows
have no gradient until B's new columns have moved, so that theirs come one update later.

Tensors are stored row by row. Appending ranks leaves the old values of A at their places, and moves those of B in all
rows but the first: a state that is copied to the beginning of a longer one (as `realloc` does) is right for A alone.

An 8-bit state of bitsandbytes is a code for each value and a scale for each block of 256 values in that order. Blocks
of A stay. Those of B hold other values afterwards, which may come from two old blocks of different scales: the new
block has the larger one, the values that came with it keep their codes, and are exact; the others get the code that is
nearest.
"""

from collections.abc import Mapping
from typing import Any

import torch

from ..resets.optimizer_state import NOT_MEMORY, STEP
from .growth import resized


# States that have the parameter's own shape.
OF_VALUES = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "state1", "state2")
CODES = {"state1": ("absmax1", "qmap1"), "state2": ("absmax2", "qmap2")}
BLOCK = 256


@torch.no_grad()
def migrated(state: Mapping[str, Any], shape: torch.Size, axis: int, rank: int) -> dict[str, Any]:
    """
    The entries of a factor's state in `optimizer.state`, empty before the first update, that change with the rank, for
    the factor's old shape and the dimension that counts ranks. Nothing is written. Raises `ValueError`: an entry whose
    meaning is not known.
    """
    scales = tuple(scale for scale, _ in CODES.values())
    unknown = sorted(set(state) - {*OF_VALUES, *scales, *NOT_MEMORY, STEP})
    unknown += [key for key in OF_VALUES if state.get(key) is not None and state[key].shape != shape]
    if unknown:
        raise ValueError(f"optimizer state {unknown} is not understood: growth cannot say what becomes of it.")
    changed = {}
    for key in OF_VALUES:
        value = state.get(key)
        if value is None:
            continue
        if value.dtype == torch.uint8:
            scale, codes = CODES[key]
            changed[key], changed[scale] = moved_codes(value, state[scale], state[codes], axis, rank)
        else:
            changed[key] = resized(value, axis, rank)
    return changed


def moved_codes(
    codes: torch.Tensor, scales: torch.Tensor, values: torch.Tensor, axis: int, rank: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Codes and scales of an 8-bit state for another rank: uint8 of the factor's shape; a scale for every block; what a
    code stands for, `(256,)`, in increasing order, one of them 0.
    """
    own = scales.repeat_interleave(BLOCK)[: codes.numel()].view(codes.shape)
    codes, own = resized(codes, axis, rank), resized(own, axis, rank)
    shape, codes, own = codes.shape, codes.flatten(), own.flatten()
    scales = torch.nn.functional.pad(own, (0, -len(own) % BLOCK)).view(-1, BLOCK).amax(dim=1)
    of_block = scales.repeat_interleave(BLOCK)[: len(own)]
    parts = torch.where(of_block > 0, values[codes.long()] * own / of_block, torch.zeros_like(own))
    nearest = torch.bucketize(parts, (values[1:] + values[:-1]) / 2).to(torch.uint8)
    return torch.where(own == of_block, codes, nearest).view(shape), scales


def check_growing_optimizer(cls: type, paged: bool = False) -> None:
    """
    Refuse, before any training, an optimizer whose state growth would not understand, or that bitsandbytes keeps in
    pages. Raises `ValueError`: naming the optimizer and those that are understood.
    """
    name = f"{cls.__module__}.{cls.__name__}"
    in_bits = cls.__module__.startswith("bitsandbytes.") and "Adam" in cls.__name__
    cure = "use torch's Adam, AdamW or SGD (optim: adamw_torch) or bitsandbytes' Adam family (optim: adamw_8bit)"
    if in_bits and (paged or cls.__name__.startswith("Paged")):
        raise ValueError(f"lora_growth_every cannot move the paged state of {name}: {cure}.")
    if not (in_bits or issubclass(cls, (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD))):
        raise ValueError(f"lora_growth_every does not understand the state of {name}: {cure}.")
