"""A shuffle that keeps the completions of a prompt together."""

import math

import torch


def whole_groups(permutation: torch.Tensor, size: int) -> torch.Tensor:
    """
    Reorder a permutation so that it moves whole groups, in the order in which it first meets each.

    It uses TRL's own permutation, so a run draws the same random numbers.

    Args:
        permutation (`torch.Tensor` of shape `(B,)`):
            A permutation of the rows of a batch, in which the rows of a group are contiguous.
        size (`int`):
            Rows of a group. If a process's part of the batch is no multiple of it, parts of groups that fit move
            together.

    Returns:
        `torch.Tensor` of shape `(B,)`: a permutation.
    """
    size = math.gcd(size, len(permutation))
    groups = list(dict.fromkeys((permutation // size).tolist()))
    return (torch.tensor(groups).unsqueeze(1) * size + torch.arange(size)).flatten()
