"""
Advantages from the rewards of a batch of groups: pure functions from rewards `(N,)` to advantages `(N,)`.

If all rewards of a group are equal, every advantage is exactly 0, except with `raw` and `global_normalized`. (In
float32 the mean of eight times 17/97 is not 17/97; `group_normalized` would amplify the difference to 10⁻³.) A
completion that no reward function could score has the reward NaN, counts in no mean and gets the advantage 0.

| name | advantage of completion i of a group of G | source |
|---|---|---|
| `raw` | r_i | REINFORCE, Williams 1992 |
| `centered` | r_i − mean of the group | Dr. GRPO, arXiv 2503.20783 |
| `group_normalized` | that, over the group's standard deviation | GRPO, arXiv 2402.03300 |
| `batch_normalized` | `centered`, over its standard deviation in the batch | REINFORCE++-baseline, arXiv 2501.03262 |
| `global_normalized` | r_i − mean of the batch, over its standard deviation | REINFORCE++, arXiv 2501.03262 |
| `rloo` | r_i − mean of the other G−1, which is G/(G−1) times `centered` | RLOO, arXiv 2402.14740 |
| `max` | r_i − mean of the group for the best of it, also if several tie; 0 for the others | – |
| `best_of_group` | best of the group − best of the other G−1: the gradient of the best of G | arXiv 2503.19595 |

`max` is the gradient of no objective that we know of. `raw` and `rloo` are unbiased for the mean, `best_of_group` for
the best of G.
"""

import math

import torch
from trl.trainer.utils import nanstd

from .supported import ADVANTAGES, UNGROUPED


EPSILON = 1e-4  # added by TRL to every standard deviation
ROUNDING = 1e-6  # relative, of a float32 sum of rewards


def raw(groups: torch.Tensor) -> torch.Tensor:
    return groups


def centered(groups: torch.Tensor) -> torch.Tensor:
    return groups - groups.nanmean(dim=1, keepdim=True)


def group_normalized(groups: torch.Tensor) -> torch.Tensor:
    return centered(groups) / (nanstd(groups, dim=1, keepdim=True) + EPSILON)


def batch_normalized(groups: torch.Tensor, batch: torch.Tensor | None = None) -> torch.Tensor:
    batch = groups if batch is None else batch
    return centered(groups) / (nanstd(centered(batch).flatten()) + EPSILON)


def global_normalized(groups: torch.Tensor, batch: torch.Tensor | None = None) -> torch.Tensor:
    batch = (groups if batch is None else batch).flatten()
    advantages = (groups - batch.nanmean()) / (nanstd(batch) + EPSILON)
    return advantages.masked_fill(all_equal(batch[None]), 0.0)


def rloo(groups: torch.Tensor) -> torch.Tensor:
    scored = (~groups.isnan()).sum(dim=1, keepdim=True)
    return centered(groups) * scored / (scored - 1).clamp(min=1)


def all_equal(groups: torch.Tensor) -> torch.Tensor:
    """Return whether rewards `(N / G, G)` of a group are equal up to rounding, or all missing: `(N / G,)`."""
    lowest = groups.nan_to_num(nan=torch.inf).amin(dim=1)
    highest = groups.nan_to_num(nan=-torch.inf).amax(dim=1)
    # Without any reward the difference is −∞ − ∞ = −∞, and the comparison true.
    return highest - lowest <= ROUNDING * torch.maximum(lowest.abs(), highest.abs())


def best_over_mean(groups: torch.Tensor) -> torch.Tensor:
    best = groups.nan_to_num(nan=-math.inf).amax(dim=1, keepdim=True)
    # A comparison with NaN is false, so a missing reward stays NaN.
    return torch.where(best - groups > ROUNDING * best.abs(), 0.0, centered(groups))


def best_of_group(groups: torch.Tensor) -> torch.Tensor:
    scored = groups.nan_to_num(nan=-math.inf)
    without_self = scored.unsqueeze(1).repeat(1, groups.size(1), 1)  # (N / G, G, G)
    without_self.diagonal(dim1=1, dim2=2).fill_(-math.inf)
    best = scored.amax(dim=1, keepdim=True)
    best_of_others = without_self.amax(dim=2)
    # A single completion has no other to compare with.
    return torch.where(groups.isnan() | best_of_others.isinf(), math.nan, best - best_of_others)


FUNCTIONS = (  # in the order of `ADVANTAGES`
    raw,
    centered,
    group_normalized,
    batch_normalized,
    global_normalized,
    rloo,
    best_over_mean,
    best_of_group,
)
ESTIMATORS = dict(zip(ADVANTAGES, FUNCTIONS, strict=True))
OVER_BATCH = tuple(name for name, estimator in ADVANTAGES.items() if estimator.over_batch)


def estimate(
    rewards: torch.Tensor, group_size: int, estimator: str, batch: torch.Tensor | None = None
) -> torch.Tensor:
    """
    Estimate the advantages of a batch of rewards.

    Args:
        rewards (`torch.Tensor` of shape `(N,)`): Rewards, group by group; NaN if missing.
        group_size (`int`): G.
        estimator (`str`): A name of the table above.
        batch (`torch.Tensor`, *optional*): Rewards for a batch's mean and deviation, if not `rewards`.

    Returns `torch.Tensor` of shape `(N,)`.
    """
    groups = rewards.view(-1, group_size)
    if batch is not None and estimator in OVER_BATCH:
        advantages = ESTIMATORS[estimator](groups, batch.view(-1, group_size))
    else:
        advantages = ESTIMATORS[estimator](groups)
    if estimator not in UNGROUPED:
        advantages = advantages.masked_fill(all_equal(groups).unsqueeze(1), 0.0)
    return advantages.flatten().nan_to_num(nan=0.0)
