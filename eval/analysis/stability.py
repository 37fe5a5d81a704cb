"""Smoothed and combined series over steps; stability of a run: collapse, drops, spikes of KL, entropy, gradient."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from trl_prorl.eval.run_folder.run import RecordedRun
from trl_prorl.run.log_files import NONFINITE


FIRST_SHARE = 0.05
NEIGHBOURS = 10  # steps on each side
MIN_NEIGHBOURS = 5


SMOOTHING_STEPS = 10
LAST_SHARE = 0.10  # last part of the steps
LOST_SHARE = 0.5  # of what a reward has risen
NOISES = 2.0  # a fall by chance is smaller than this many standard deviations of a step's reward
ROUNDING = 1e-6


def least_fall(values: pd.Series, start: float, best: float | pd.Series) -> float | pd.Series:
    """
    Return the fall below its `best` smoothed value from which on a reward has collapsed, in its unit: half of what it
    has risen from its `start`, and 2 standard deviations of a step's reward around its trend. No value of a reward is
    a natural zero, so a collapse is the same whatever is added to all rewards.

    Args:
        values (`pd.Series` of shape `(S,)`): The reward of each step.
    """
    return np.maximum(LOST_SHARE * (best - start), NOISES * noise(values) + ROUNDING)


def noise(values: pd.Series) -> float:
    """
    Return the standard deviation of the values of steps around their trend, from the differences of neighbours without
    the largest one: a policy that an update destroys falls in one step.
    """
    differences = values.diff().dropna()
    return differences.drop(differences.abs().idxmax()).std() / math.sqrt(2)


def first_mean(values: pd.Series | None) -> float | None:
    """Return the mean of the first 5 % of the measured steps, at least one."""
    return None if values is None else float(values.iloc[: _count(values, FIRST_SHARE)].mean())


def last_mean(values: pd.Series | None) -> float | None:
    """Return the mean of the last 10 % of the measured steps, at least one."""
    return None if values is None else float(values.iloc[-_count(values, LAST_SHARE) :].mean())


def _count(values: pd.Series, share: float) -> int:
    return max(1, round(share * len(values)))


def running_mean(values: pd.Series) -> pd.Series:
    return values.rolling(SMOOTHING_STEPS, min_periods=1).mean()


def running_median_of_positive(values: pd.Series) -> pd.Series:
    """
    Return the running median of the positive values, for a KL.

    The k3 mean is heavy-tailed: one token can raise a step by orders of magnitude. In the first pass over a batch the
    KL to pi_old is 0 by construction. A running mean would show little else.
    """
    return values[values > 0].rolling(SMOOTHING_STEPS, min_periods=1).median()


def band(series: list[pd.Series]) -> pd.DataFrame:
    """
    Return mean, lowest and highest of several series, at their common steps.

    Beyond the end of the shortest series, the mean would be over fewer series and would jump.
    """
    steps = np.unique(np.concatenate([line.index for line in series]))
    first = max(line.index[0] for line in series)
    last = min(line.index[-1] for line in series)
    steps = steps[(steps >= first) & (steps <= last)]
    values = np.array([np.interp(steps, line.index, line) for line in series])
    columns = {"mean": values.mean(axis=0), "low": values.min(axis=0), "high": values.max(axis=0)}
    return pd.DataFrame(columns, index=steps)


class SpikeRule(NamedTuple):
    """
    Definition of a spike: at least `factor` times the median of its neighbours, and at least `rise` above it (in the
    unit of the metric), because a multiple of a tiny value is still tiny.
    """

    factor: float
    rise: float


KL_SPIKE = SpikeRule(factor=10.0, rise=0.01)
ENTROPY_SPIKE = SpikeRule(factor=1.5, rise=0.1)
GRADIENT_SPIKE = SpikeRule(factor=5.0, rise=0.0)  # gradient norms of different runs have no common scale


def neighbour_medians(values: pd.Series) -> pd.Series:
    """
    Return the median of the 10 neighbours on either side of each value, without the value itself, from one value per
    step (NaN if not measured); NaN with fewer than 5 neighbours.

    Values on both sides count, so a metric that grows fast is no spike. Values of 0 and below and NaN do not count,
    because the KL to the sampling policy is exactly 0 in the first pass over a batch.
    """
    positive = values.where(values > 0)
    places = [place for place in range(-NEIGHBOURS, NEIGHBOURS + 1) if place != 0]
    around = pd.concat([positive.shift(place) for place in places], axis=1)
    return around.median(axis=1).where(around.count(axis=1) >= MIN_NEIGHBOURS)


def find_spikes(values: pd.Series, rule: SpikeRule, resets: Sequence[int] = ()) -> pd.Series:
    """
    Find the spikes of a metric over the steps of a run: the step of the highest value of each, with that value / the
    median of its neighbours. Consecutive high steps are one spike; steps without a positive value between them are
    ignored. Neighbours are on the same side of every reset: a KL that grows again after one is no spike.
    """
    interval = np.searchsorted(sorted(resets), values.index)  # the number of resets before a step
    medians = pd.concat([neighbour_medians(part) for _, part in values.groupby(interval)])
    known = medians.notna() & (values > 0)
    values = values[known]
    medians = medians[known]
    high = (values >= rule.factor * medians) & (values - medians >= rule.rise)
    spike = (~high).cumsum()[high]  # high steps in a row have the same number
    highest = values[high].groupby(spike).idxmax()
    return (values / medians)[highest]


def spikes(run: RecordedRun, key: str, rule: SpikeRule) -> pd.Series | None:
    """Return the spikes of a metric of a run, as [`find_spikes`]; `None` if it was not measured."""
    values = run.measured(key)
    return None if values is None else find_spikes(values, rule, run.reset_steps() or [])


def has_collapsed(run: RecordedRun) -> bool | None:
    """
    Return whether the median reward of the last 10 % of the steps, at least 10 of them, is as far below the best mean
    of 10 as [`least_fall`], or a value was not finite; `None` if neither is known. If one of
    [`~trl_prorl.keys.LOWER_THE_REWARD`] is set, only non-finite values count.
    """
    if run.event_steps(NONFINITE):
        return True
    reward = run.measured("reward")
    if run.lowers_reward or reward is None or len(reward) < SMOOTHING_STEPS:
        return None
    smooth = reward.rolling(SMOOTHING_STEPS).mean().dropna()
    last = reward.iloc[-max(SMOOTHING_STEPS, _count(reward, LAST_SHARE)) :].median()
    return bool(smooth.max() - last >= least_fall(reward, smooth.iloc[0], smooth.max()))


def largest_drop(run: RecordedRun) -> float | None:
    """
    Return the largest drop of the training reward, a mean over windows of 10 steps, below its best so far; 0 if it
    only rose, `None` if the run is shorter or has no reward.
    """
    reward = run.measured("reward")
    if reward is None or len(reward) < SMOOTHING_STEPS:
        return None
    smooth = reward.rolling(SMOOTHING_STEPS).mean().dropna()
    return float((smooth.cummax() - smooth).max())
