"""Reward collapse of a run: the rule of roll-backs and of the report."""

import pandas as pd


SMOOTHING_STEPS = 10
LAST_SHARE = 0.10  # last part of the steps
COLLAPSE_SHARE = 0.5  # of the best


def end_by_best(values: pd.Series) -> float | None:
    """
    Return the mean of the last 10 % of the values (one per step), at least 10, over the best mean of 10. (With a
    shorter last window, chance would look like a loss.) `None` with fewer than 10 values, or if the best is not
    positive.
    """
    best = values.rolling(SMOOTHING_STEPS).mean().max()
    if not best > 0:  # also if NaN
        return None
    steps = max(SMOOTHING_STEPS, round(LAST_SHARE * len(values)))
    end = values.iloc[-steps:].mean()
    return float(end / best)
