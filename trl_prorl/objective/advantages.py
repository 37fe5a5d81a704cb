"""
Advantages from the rewards of a batch of groups: pure functions, rewards of shape `(N,)` in, advantages of shape `(N,)` out.

Where all rewards of a group are equal every advantage is exactly 0, but for `raw`: the mean of eight times 17/97 is not 17/97 in
float32, and what is left would become 10⁻³ by `group_normalized`. A completion that no reward function could score has the
reward NaN; it counts in no mean and gets the advantage 0.

| name | advantage of completion i of a group of G | source |
|---|---|---|
| `raw` | r_i | REINFORCE, Williams 1992 |
| `centered` | r_i − mean of the group | Dr. GRPO, arXiv 2503.20783 |
| `group_normalized` | that, over the group's standard deviation | GRPO, arXiv 2402.03300 |
| `batch_normalized` | `centered`, over its standard deviation in the batch | REINFORCE++-baseline, arXiv 2501.03262 |
| `rloo` | r_i − mean of the other G−1, which is G/(G−1) times `centered` | RLOO, arXiv 2402.14740 |
| `max` | r_i − mean of the group for the best of it, all of them where they tie; 0 for the others | – |
| `best_of_group` | best of the group − best of the other G−1: the gradient of the best of G | arXiv 2503.19595 |

`max` pushes nothing down: only the best of a group have an advantage, and it is never negative. It is the gradient of no
objective that we know of; `raw`, `rloo` and `best_of_group` are unbiased, of the mean and of the best of G.
"""

import math

import torch
from trl.trainer.utils import nanstd


EPSILON = 1e-4  # TRL's, on every standard deviation
ROUNDING = 1e-6  # of a float32 sum of rewards, relative


def raw(groups: torch.Tensor) -> torch.Tensor:
    return groups


def centered(groups: torch.Tensor) -> torch.Tensor:
    return groups - groups.nanmean(dim=1, keepdim=True)


def group_normalized(groups: torch.Tensor) -> torch.Tensor:
    return centered(groups) / (nanstd(groups, dim=1, keepdim=True) + EPSILON)


def batch_normalized(groups: torch.Tensor, batch: torch.Tensor | None = None) -> torch.Tensor:
    of_batch = centered(groups if batch is None else batch)
    return centered(groups) / (nanstd(of_batch.flatten()) + EPSILON)


def rloo(groups: torch.Tensor) -> torch.Tensor:
    scored = (~groups.isnan()).sum(dim=1, keepdim=True)
    return centered(groups) * scored / (scored - 1).clamp(min=1)


def all_equal(groups: torch.Tensor) -> torch.Tensor:
    """Whether the rewards of a group, shape `(N / G, G)`, are equal to rounding, or none was given: shape `(N / G,)`."""
    least, greatest = groups.nan_to_num(nan=torch.inf).amin(dim=1), groups.nan_to_num(nan=-torch.inf).amax(dim=1)
    # Where nothing was scored: −∞ − ∞.
    return greatest - least <= ROUNDING * torch.maximum(least.abs(), greatest.abs())


def best_over_mean(groups: torch.Tensor) -> torch.Tensor:
    best = groups.nan_to_num(nan=-math.inf).amax(dim=1, keepdim=True)
    # A comparison with NaN is false, and what was not scored stays NaN.
    return torch.where(best - groups > ROUNDING * best.abs(), 0.0, centered(groups))


def best_of_group(groups: torch.Tensor) -> torch.Tensor:
    known = groups.nan_to_num(nan=-math.inf)
    others = known.unsqueeze(1).repeat(1, groups.size(1), 1)
    others.diagonal(dim1=1, dim2=2).fill_(-math.inf)
    best, best_of_others = known.amax(dim=1, keepdim=True), others.amax(dim=2)
    # Alone in its group, a completion has nothing to be better than.
    return torch.where(groups.isnan() | best_of_others.isinf(), math.nan, best - best_of_others)


ESTIMATORS = {
    "raw": raw,
    "centered": centered,
    "group_normalized": group_normalized,
    "batch_normalized": batch_normalized,
    "rloo": rloo,
    "max": best_over_mean,
    "best_of_group": best_of_group,
}


def estimate(
    rewards: torch.Tensor, group_size: int, estimator: str, batch: torch.Tensor | None = None
) -> torch.Tensor:
    """
    Advantages of a batch.

    Args:
        rewards (`torch.Tensor` of shape `(N,)`):
            One reward a completion, groups lying together; NaN where there is none.
        group_size (`int`):
            G, of which N is a multiple.
        estimator (`str`):
            One of the table above.
        batch (`torch.Tensor`, *optional*):
            Rewards of the batch that `batch_normalized` speaks of, where it is not `rewards`.

    Returns:
        `torch.Tensor` of shape `(N,)`.
    """
    groups = rewards.view(-1, group_size)
    of_batch = {} if batch is None or estimator != "batch_normalized" else {"batch": batch.view(-1, group_size)}
    advantages = ESTIMATORS[estimator](groups, **of_batch)
    if estimator != "raw":
        advantages = advantages.masked_fill(all_equal(groups).unsqueeze(1), 0.0)
    return advantages.flatten().nan_to_num(nan=0.0)
