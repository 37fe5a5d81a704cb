"""A mean of means of unequal numbers of rows or tokens."""

import math
from collections.abc import Sequence


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float | None:
    """Average values by their weights, without NaN; `None` if nothing has a weight."""
    pairs = zip(values, weights, strict=True)
    counted = [(value, weight) for value, weight in pairs if weight and not math.isnan(value)]
    if not counted:
        return None
    if len({weight for _, weight in counted}) == 1:  # TRL's arithmetic, to the bit
        return sum(value for value, _ in counted) / len(counted)
    return sum(value * weight for value, weight in counted) / sum(weight for _, weight in counted)
