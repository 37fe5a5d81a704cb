"""Smoothed and combined series over steps; stability of a run: collapse, drops, spikes of KL, entropy, gradient."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from trl_prorl.eval.run_folder.run import RecordedRun
from trl_prorl.extras.collapse import COLLAPSE_SHARE, LAST_SHARE, SMOOTHING_STEPS, end_by_best
from trl_prorl.variants import VARIANTS


FIRST_SHARE = 0.05
LEAST_STEPS = 3  # steps of a curve
DRAWN = ("reward", "kl_ref", "kl_old", "entropy", "grad_norm", "truncated_fraction", "eval_reward")
NEIGHBOURS = 10  # steps on each side
LEAST_NEIGHBOURS = 5


def first_mean(values: pd.Series | None) -> float | None:
    """Return the mean of the first 5 % of the measured steps, at least one."""
    if values is None:
        return None
    count = max(1, round(FIRST_SHARE * len(values)))
    return float(values.iloc[:count].mean())


def last_mean(values: pd.Series | None) -> float | None:
    """Return the mean of the last 10 % of the measured steps, at least one."""
    if values is None:
        return None
    count = max(1, round(LAST_SHARE * len(values)))
    return float(values.iloc[-count:].mean())


def why_no_curves(run: RecordedRun) -> str | None:
    """Return why a run has no curves: too few steps, or nothing measured; else `None`."""
    steps = len(run.metrics)
    if steps < LEAST_STEPS:
        return f"only {steps} {'step is' if steps == 1 else 'steps are'} in its log"
    if all(run.measured(key) is None for key in DRAWN):
        return "its log has no finite reward, KL, entropy or gradient norm"
    return None


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
    Return mean, lowest and highest of several series, at the steps where all have a value.

    Beyond the end of the shortest series, the mean would be over fewer series and would jump.
    """
    steps = np.unique(np.concatenate([one.index for one in series]))
    first = max(one.index[0] for one in series)
    last = min(one.index[-1] for one in series)
    steps = steps[(steps >= first) & (steps <= last)]
    values = np.array([np.interp(steps, one.index, one) for one in series])
    columns = {"mean": values.mean(axis=0), "low": values.min(axis=0), "high": values.max(axis=0)}
    return pd.DataFrame(columns, index=steps)


@dataclass(frozen=True)
class SpikeRule:
    """
    Definition of a spike: at least `factor` times the median of its neighbours, and at least `rise` above it (in the
    unit of the metric), because a multiple of a tiny value is still tiny.
    """

    factor: float
    rise: float


KL_SPIKE = SpikeRule(factor=10.0, rise=0.01)
ENTROPY_SPIKE = SpikeRule(factor=1.5, rise=0.1)
GRADIENT_SPIKE = SpikeRule(factor=5.0, rise=0.0)  # gradient norms of different runs have no common scale


@dataclass(frozen=True)
class Spikes:
    """
    The spikes of a run: the index of the highest value of each, and that value / the median of its neighbours, shape
    (S,).
    """

    places: np.ndarray
    ratios: np.ndarray

    @property
    def count(self) -> int:
        return len(self.places)

    @property
    def largest(self) -> float | None:
        return float(self.ratios.max()) if len(self.ratios) else None


def neighbour_medians(values: np.ndarray, neighbours: int = NEIGHBOURS) -> np.ndarray:
    """
    Return the median of the neighbours of each value, without the value itself, shape (T,), from one value per step
    (NaN if not measured); NaN with fewer than 5 neighbours.

    Values on both sides count, so a metric that grows fast, or restarts at 0 after a reset, is no spike. Values of 0
    and below and NaN do not count, because the KL to the sampling policy is exactly 0 in the first pass over a batch.
    """
    positive = np.where(values > 0, values, np.nan)
    padded = np.pad(positive, neighbours, constant_values=np.nan)
    around = np.lib.stride_tricks.sliding_window_view(padded, 2 * neighbours + 1).copy()
    around[:, neighbours] = np.nan
    medians = np.full(len(values), np.nan)
    enough = (~np.isnan(around)).sum(axis=1) >= LEAST_NEIGHBOURS
    if enough.any():
        medians[enough] = np.nanmedian(around[enough], axis=1)
    return medians


def find_spikes(values: np.ndarray, rule: SpikeRule) -> Spikes:
    """
    Find the spikes of a metric over the steps of a run, shape (T,); NaN if not measured, infinity if it was infinite.
    Consecutive high steps are one spike; steps without a positive value between them are ignored.
    """
    values = np.asarray(values, float)
    if not len(values):
        return Spikes(np.array([], int), np.array([]))
    medians = neighbour_medians(values)
    known = np.flatnonzero(~np.isnan(medians) & (values > 0))
    values_known = values[known]
    medians_known = medians[known]
    high = (values_known >= rule.factor * medians_known) & (values_known - medians_known >= rule.rise)
    places = []
    ratios = []
    beginnings = np.flatnonzero(high & ~np.concatenate([[False], high[:-1]]))
    for begin in beginnings:
        end = begin + int(np.argmin(np.append(high[begin:], False)))
        highest = begin + int(np.argmax(values_known[begin:end]))
        places.append(known[highest])
        ratios.append(values_known[highest] / medians_known[highest])
    return Spikes(np.array(places, int), np.array(ratios, float))


def smoothed_reward(run: RecordedRun) -> pd.Series | None:
    """Return the mean training reward over windows of 10 steps; `None` if the run is shorter or has no reward."""
    reward = run.measured("reward")
    if reward is None or len(reward) < SMOOTHING_STEPS:
        return None
    return reward.rolling(SMOOTHING_STEPS).mean().dropna()


def nonfinite_events(run: RecordedRun) -> int | None:
    """Return the number of updates with NaN or infinity; `None` without `events.jsonl`."""
    if run.events is None:
        return None
    return int((run.events["event"] == "nonfinite").sum()) if "event" in run.events else 0


def has_collapsed(run: RecordedRun) -> bool | None:
    """
    Return whether the mean reward of the last 10 % of the steps, at least 10 of them, is below half of the best
    smoothed reward, or a value was not finite; `None` if neither is known. If the best reward is not positive, only
    non-finite values count.
    """
    if nonfinite_events(run):
        return True
    reward = run.measured("reward")
    share = None if reward is None else end_by_best(reward)
    return None if share is None else share < COLLAPSE_SHARE


def largest_drop(run: RecordedRun) -> float | None:
    """Return the largest drop of the smoothed reward below its best so far; 0 if it only rose."""
    smooth = smoothed_reward(run)
    return None if smooth is None else float((smooth.cummax() - smooth).max())


def kl_key(variant: str) -> str:
    """Return the key of the KL to a variant's own anchor; `kl_ref` for an unknown variant."""
    return VARIANTS[variant].kl if variant in VARIANTS else "kl_ref"


def kl_spikes(run: RecordedRun) -> Spikes | None:
    """Return the spikes of the KL to the run's own anchor; `None` if it was not measured."""
    return _spikes(run, kl_key(run.variant), KL_SPIKE)


def entropy_spikes(run: RecordedRun) -> Spikes | None:
    """Return the spikes of the policy's entropy; `None` if it was not measured."""
    return _spikes(run, "entropy", ENTROPY_SPIKE)


def gradient_spikes(run: RecordedRun) -> Spikes | None:
    """Return the spikes of the gradient norm before clipping; `None` if it was not measured."""
    return _spikes(run, "grad_norm", GRADIENT_SPIKE)


def _spikes(run: RecordedRun, key: str, rule: SpikeRule) -> Spikes | None:
    values = run.measured(key)
    return None if values is None else find_spikes(values.to_numpy(), rule)
