"""Which tokens of a batch count."""

from collections.abc import Mapping

import torch


def completion_mask(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return 1 where a token of a completion counts, shape `(B, T)`: not padding, and not written by a tool."""
    mask = batch["completion_mask"]
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask


def zero_masked(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """
    Set values `(B, T)` to 0 where the mask, of numbers or bools, is 0. A product with the mask would not do: at a
    token that does not count, such as one that a tool wrote, the exponential of a log-ratio may be infinite, and 0 · ∞
    is NaN, in a gradient too.
    """
    return torch.where(mask.bool(), values, 0.0)
