"""When a run has collapsed, by its rewards: the rule of a roll-back and of the report."""

import pandas as pd


SMOOTHING_STEPS = 10
LAST_SHARE = 0.10  # of the steps, which are the end
COLLAPSE_SHARE = 0.5  # of the best


def end_by_best(values: pd.Series) -> float | None:
    """
    Return how much of its best a run has at its end: the mean of the last 10 % of the steps, at least 10, by the best
    mean of 10 steps. Against the best of many windows the last one must not be shorter, or luck alone would look like
    a loss.

    Args:
        values (`pd.Series`): A value for each step.

    Returns `float` or `None`: `None` with fewer than 10 values, and where the best is not positive.
    """
    best = values.rolling(SMOOTHING_STEPS).mean().max()
    if not best > 0:  # NaN, too
        return None
    steps = max(SMOOTHING_STEPS, round(LAST_SHARE * len(values)))
    end = values.iloc[-steps:].mean()
    return float(end / best)
