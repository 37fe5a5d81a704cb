"""A shuffle that keeps the completions of a prompt together."""

import math

import torch


def whole_groups(permutation: torch.Tensor, size: int) -> torch.Tensor:
    """
    Reorder a permutation so that it moves whole groups, in the order in which it first meets each.

    Made from TRL's own permutation, it draws the same random numbers.

    Args:
        permutation (`torch.Tensor` of shape `(B,)`):
            Of the rows of a batch in which groups lie together.
        size (`int`):
            Rows of a group. Where a process's part of the batch is no multiple of it, of the parts of groups that fit.

    Returns:
        `torch.Tensor` of shape `(B,)`: a permutation.
    """
    size = math.gcd(size, len(permutation))
    groups = list(dict.fromkeys((permutation // size).tolist()))
    return (torch.tensor(groups).unsqueeze(1) * size + torch.arange(size)).flatten()
