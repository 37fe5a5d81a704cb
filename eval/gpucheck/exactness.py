"""How exactly an attention computes: against one dense mask in float64, values and gradients."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention


# Of a row: each group's prefix, and the lengths of what continues it.
GROUPS = ((70, (150, 40, 1)), (1, (9, 30)), (33, (64, 128, 17)))
HEADS, KEY_HEADS, SIZE = 4, 2, 64

Sequences = list[tuple[int, int, int, int]]


class Errors(NamedTuple):
    """Root-mean-square errors, as shares of the exact values' own; `None` where it was not computed."""

    values: float
    gradients: float | None


def sequences_of(groups) -> Sequences:
    """The sequences of a row as `trl_prorl.scoring.prefix_attention.layout` takes them."""
    found, end = [], 0
    for prefix, lengths in groups:
        shared = (end, prefix)
        found.append((end, 0, *shared))
        end += prefix
        for length in lengths:
            found.append((*shared, end, length))
            end += length
    return found


def dense(sequences: Sequences) -> torch.Tensor:
    """The mask over the whole row, place by place."""
    size = sum(length for *_, length in sequences)
    mask = torch.zeros(size, size, dtype=torch.bool)
    for prefix, prefix_length, start, length in sequences:
        mask[start : start + length, prefix : prefix + prefix_length] = True
        mask[start : start + length, start : start + length] = torch.ones(length, length).tril().bool()
    return mask


def errors(attention: Callable, dtype: torch.dtype, device: str, gradients: bool = True) -> Errors:
    """
    The errors of an attention on a row of several groups.

    Args:
        attention (`Callable`): Makes a layout, as `packed_logps` takes it.
        dtype (`torch.dtype`), device (`str`): In which, and where, it computes.
        gradients (`bool`, *optional*, defaults to `True`): Whether it can compute them there.
    """
    sequences = sequences_of(GROUPS)
    mask = dense(sequences)
    source = torch.Generator().manual_seed(0)
    shapes = [(1, heads, len(mask), SIZE) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    states = [torch.randn(shape, generator=source).to(dtype) for shape in shapes]  # the same in both precisions
    weights = torch.randn(1, len(mask), HEADS, SIZE, generator=source).to(dtype)
    exact = [state.double().requires_grad_() for state in states]
    wanted = scaled_dot_product_attention(*exact, attn_mask=mask, enable_gqa=True).transpose(1, 2)
    (wanted * weights.double()).sum().backward()
    given = [state.to(device).requires_grad_(gradients) for state in states]
    found = attention(sequences, device).attend(*given)
    if not gradients:
        return Errors(_error(found, wanted), None)
    (found * weights.to(device)).sum().backward()
    of_states = [_error(mine.grad, theirs.grad) for mine, theirs in zip(given, exact, strict=True)]
    return Errors(_error(found, wanted), max(of_states))


def _error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    difference = found.detach().double().cpu() - wanted.detach()
    return (difference.square().mean().sqrt() / wanted.detach().square().mean().sqrt()).item()
