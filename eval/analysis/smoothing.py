"""Series over steps: their ends, their smooth course, and several seeds together."""

import numpy as np
import pandas as pd


SMOOTHING_STEPS = 10
FIRST_SHARE, LAST_SHARE = 0.05, 0.10


def first_mean(values: pd.Series | None) -> float | None:
    """Mean of the first 5 % of the measured steps, at least one."""
    return None if values is None else float(values.iloc[: max(1, round(FIRST_SHARE * len(values)))].mean())


def last_mean(values: pd.Series | None) -> float | None:
    """Mean of the last 10 % of the measured steps, at least one."""
    return None if values is None else float(values.iloc[-max(1, round(LAST_SHARE * len(values))) :].mean())


def end_by_best(values: pd.Series) -> float | None:
    """
    How much of its best a run has at its end: the mean of the last 10 % of the steps, at least 10, by the best mean of
    10 steps; `None` with fewer than 10 values, and where the best is not positive. Against the best of many windows
    the last one must not be shorter, or luck alone would look like a loss.
    """
    best = values.rolling(SMOOTHING_STEPS).mean().max()
    if not best > 0:  # NaN, too
        return None
    return float(values.iloc[-max(SMOOTHING_STEPS, round(LAST_SHARE * len(values))) :].mean() / best)


def running_mean(values: pd.Series) -> pd.Series:
    return values.rolling(SMOOTHING_STEPS, min_periods=1).mean()


def running_median_of_positive(values: pd.Series) -> pd.Series:
    """
    For a KL. The k3 mean is heavy-tailed, one token can lift a step by orders of magnitude, and in the first pass over
    a batch the KL to pi_old is 0 by construction; a running mean would show little else.
    """
    return values[values > 0].rolling(SMOOTHING_STEPS, min_periods=1).median()


def band(series: list[pd.Series]) -> pd.DataFrame:
    """
    Mean, lowest and highest of several series, at the steps where all have a value.

    Beyond the end of the shortest only the survivors would be left, and their mean would jump.
    """
    steps = np.unique(np.concatenate([one.index for one in series]))
    steps = steps[(steps >= max(one.index[0] for one in series)) & (steps <= min(one.index[-1] for one in series))]
    values = np.array([np.interp(steps, one.index, one) for one in series])
    return pd.DataFrame({"mean": values.mean(axis=0), "low": values.min(axis=0), "high": values.max(axis=0)}, steps)
