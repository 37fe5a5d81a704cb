"""One number for all seeds of a configuration: with an interval over prompts and seeds, or the worst of them."""

import numpy as np

from trl_prorl.eval.analysis.statistics import Estimate, bootstrap_interval, t_interval


def prompts_and_seeds(
    values: list[np.ndarray], same: bool, least: float = 0.0, level: float = 0.95
) -> Estimate | None:
    """
    Mean over runs with an interval that covers the choice of prompts and, where there are several runs, of seeds.

    Args:
        values (`list[np.ndarray]`): One value per prompt for each run, shape (P,) each.
        same (`bool`): Whether the prompts are the same in all runs; if not, only the t-interval over runs is left.
        least (`float`, *optional*, defaults to `0.0`): The least value a prompt can have.
        level (`float`, *optional*, defaults to `0.95`): Nominal coverage of each of the two.

    Returns:
        [`Estimate`] or `None`: The hull of the two intervals; `None` without runs.
    """
    if not values:
        return None
    means = [float(run_values.mean()) for run_values in values]
    intervals = [t_interval(means, level)[1:]] if len(means) > 1 else []
    if same:
        intervals.append(bootstrap_interval(np.mean(values, axis=0), level, bounds=(least, 1.0)))
    lows, highs = zip(*intervals, strict=True)
    return Estimate(float(np.mean(means)), float(np.min(lows)), float(np.max(highs)))


def worst(values: list[float | None]) -> float | None:
    """The largest of the values that were measured; `None` if none was."""
    return max((value for value in values if value is not None), default=None)


def spread(estimates: list[Estimate | None]) -> float | None:
    """Highest less lowest value; `None` with fewer than 2."""
    values = [estimate.value for estimate in estimates if estimate is not None]
    return max(values) - min(values) if len(values) > 1 else None
