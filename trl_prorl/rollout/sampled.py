"""Completions that are looked at, and not trained on."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Sampled:
    """
    Completions of rows, G for each, row by row; N in all.

    Attributes:
        completions (`list`): As reward functions get them: texts, or lists of messages.
        ids (`list[list[int]]`): Their tokens, the end token included.
        cut (`list[bool]`): Whether each was cut at the greatest length instead of ending.
        rewards (`torch.Tensor` of shape `(N, F)`): Of each reward function; NaN where it does not apply.
        total (`torch.Tensor` of shape `(N,)`): Their weighted sum; NaN where none applies.
        reward_seconds (`float`): All reward functions took so long.
        batch (`dict[str, torch.Tensor]`): As a step would train on it, without anchors.
    """

    completions: list
    ids: list[list[int]]
    cut: list[bool]
    rewards: torch.Tensor
    total: torch.Tensor
    reward_seconds: float
    batch: dict[str, torch.Tensor]
