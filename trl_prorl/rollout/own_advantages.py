"""
Advantages of a generation batch where they are not TRL's: another estimator, rows to leave out, rewards without
bounds.
"""

import math
from collections import deque
from typing import TYPE_CHECKING

import torch

from ..objective.advantages import estimate
from .dynamic_sampling import undecided
from .outcome import Outcome, own_part, weighted_sum


if TYPE_CHECKING:
    from ..config import ProRLConfig


def set_advantages(
    advantages: torch.Tensor,
    outcome: Outcome,
    weights: torch.Tensor,
    group_size: int,
    process: int,
    args: "ProRLConfig",
    logged: deque,
    penalties: torch.Tensor | None = None,
) -> None:
    """
    Replace TRL's advantages where the configuration asks for it, and mark those of groups with an infinite reward.

    Args:
        advantages (`torch.Tensor` of shape `(B,)`): Of this process, changed in place.
        outcome ([`~trl_prorl.rollout.outcome.Outcome`]): Rewards of all processes.
        weights (`torch.Tensor` of shape `(F,)`): Of the reward functions.
        group_size (`int`), process (`int`): Completions of a prompt, G, and the index of this process.
        args ([`~trl_prorl.ProRLConfig`]): `advantage_estimator`, `drop_zero_rows`, `multi_objective_aggregation`.
        penalties (`torch.Tensor` of shape `(N,)`, *optional*): Of all processes, to be taken off the rewards.
        logged (`collections.deque`): The advantages in TRL's table of completions, the newest last, replaced too.
    """
    count, estimator = len(advantages), args.advantage_estimator
    if estimator is not None:
        batch = weighted_sum(outcome.rewards, weights)
        batch = batch if penalties is None else batch - penalties
        advantages.copy_(own_part(estimate(batch, group_size, estimator), process, count))
        # The table has the newest rows of all rounds of dynamic sampling, which need not be those of the batch.
        newest = weighted_sum(torch.cat(outcome.rounds), weights)
        newest = (newest - penalties if penalties is not None and len(penalties) == len(newest) else newest)[
            -logged.maxlen :
        ]
        for _ in range(min(len(logged), len(newest))):
            logged.pop()
        logged.extend(estimate(newest, group_size, estimator, batch).tolist())
    if args.drop_zero_rows:  # it looks for zeros, and TRL's advantages of equal rewards are only nearly 0
        together = args.multi_objective_aggregation == "sum_then_normalize"  # else each is centred by itself
        columns = [weighted_sum(outcome.rewards, weights)] if together else outcome.rewards.unbind(dim=1)
        groups = torch.stack([undecided(column, group_size) for column in columns]).all(dim=0)
        advantages[own_part(groups.repeat_interleave(group_size), process, count)] = 0.0
    # TRL silently zeroes the advantages of a group with an infinite reward; the guard sees NaN.
    advantages[own_part(outcome.unbounded(group_size), process, count)] = math.nan
