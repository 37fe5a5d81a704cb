"""Series over steps: their ends, their smooth course, and several seeds together."""

import numpy as np
import pandas as pd

from trl_prorl.guards.collapse import LAST_SHARE, SMOOTHING_STEPS


FIRST_SHARE = 0.05


def first_mean(values: pd.Series | None) -> float | None:
    """Mean of the first 5 % of the measured steps, at least one."""
    return None if values is None else float(values.iloc[: max(1, round(FIRST_SHARE * len(values)))].mean())


def last_mean(values: pd.Series | None) -> float | None:
    """Mean of the last 10 % of the measured steps, at least one."""
    return None if values is None else float(values.iloc[-max(1, round(LAST_SHARE * len(values))) :].mean())


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
