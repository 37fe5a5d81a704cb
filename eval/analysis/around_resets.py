"""Metrics aligned at resets; dip and reconvergence of the reward."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import CensoredData, ecdf


BEFORE = 10  # steps of the level before a reset
AFTER = 5  # steps of the running mean after it
AROUND = (10, 20)  # steps before and after a reset that are aligned with those of other resets
MIN_SHARE = 0.5  # share of the resets that must have a value for a mean over resets
MIDDLE = (10, 90)  # percentiles over resets that bound a band


@dataclass(frozen=True)
class Response:
    """
    The reward after one reset: the dip below the level before, and the steps until recovery; `censored` if it did not
    recover before the next reset or the end.
    """

    dip: float
    reconvergence: int
    censored: bool


def with_neighbours(resets: list[int]) -> Iterator[tuple[float, int, float]]:
    """Return the steps of the previous reset, of each reset, and of the next one, in their order."""
    edges = [-np.inf, *sorted(set(resets)), np.inf]
    return zip(edges, edges[1:-1], edges[2:], strict=False)


def reset_responses(reward: pd.Series, resets: list[int]) -> list[Response]:
    """
    Return dip and reconvergence at each reset of a run, in the order of the steps. Resets without a measured reward
    before them, or without a complete window after them, are skipped.

    The *level before* is the mean reward of the last 10 steps up to the reset and after the previous one. After the
    reset, a running mean over 5 steps is taken over steps after it, up to the next reset. The *dip* is the level
    before − the lowest of these means, 0 if none is lower. The *reconvergence* is the number of steps from the reset
    to the first window with a mean of at least the level before: 0 if the first 5 steps do.

    Noise alone causes a dip: the lowest of many means is below the level before even in a run without resets. So
    compare with [`reset_responses`] of a run without resets at the same steps.

    Args:
        reward (`pd.Series`): The measured rewards by the optimizer steps done, increasing.
        resets (`list[int]`): Optimizer steps done at each reset: it is between that step and the next.
    """
    steps = reward.index.to_numpy()
    rewards = reward.to_numpy()
    responses = []
    for previous, reset, following in with_neighbours(resets):
        before = rewards[(steps > max(previous, reset - BEFORE)) & (steps <= reset)]
        after = rewards[(steps > reset) & (steps <= following)]
        if not len(before) or len(after) < AFTER:
            continue
        level = before.mean()
        means = np.lib.stride_tricks.sliding_window_view(after, AFTER).mean(axis=1)
        # A mean that is equal up to rounding counts as recovered.
        back = np.flatnonzero(means >= level - 1e-12)
        responses.append(
            Response(
                dip=max(0.0, float(level - means.min())),
                reconvergence=int(back[0]) if len(back) else len(means),
                censored=not len(back),
            )
        )
    return responses


def align_at_resets(values: pd.Series, resets: list[int]) -> np.ndarray:
    """
    Return a metric around each reset of a run, shape (R, 10 + 20), a row for each reset in the order of the steps:
    first the last 10 steps up to the reset, then the first 20 steps after it.

    Values are NaN if not measured, at steps beyond the run, and beyond the previous and the next reset, because those
    belong to another reset.

    Args:
        values (`pd.Series`): The metric by the optimizer steps done.
        resets (`list[int]`): Optimizer steps done at each reset: it is between that step and the next.
    """
    before, after = AROUND
    rows = [np.empty((0, before + after))]
    for previous, reset, following in with_neighbours(resets):
        steps = np.arange(reset - before + 1, reset + after + 1)
        around = values.reindex(steps).to_numpy(float, copy=True)
        around[(steps <= previous) | (steps > following)] = np.nan
        rows.append(around[None])
    return np.concatenate(rows)


def band_over_resets(aligned: np.ndarray) -> pd.DataFrame:
    """
    Return mean, 10th and 90th percentile over resets, as `mean`, `low` and `high`, by the steps since the reset: 0 is
    the last step before it, 1 the first after it.

    A step is skipped if less than half of the resets have a value: near the ends of a run, or between close resets,
    few would remain, and their mean would jump.

    Args:
        aligned (`np.ndarray`): From [`align_at_resets`], concatenated over runs, shape (R, T); each has a value.
    """
    counts = (~np.isnan(aligned)).sum(axis=0)
    shown = np.flatnonzero((counts > 0) & (counts >= MIN_SHARE * len(aligned)))
    low, high = np.nanpercentile(aligned[:, shown], MIDDLE, axis=0)
    columns = {"mean": np.nanmean(aligned[:, shown], axis=0), "low": low, "high": high}
    return pd.DataFrame(columns, index=shown + 1 - AROUND[0])


def median_reconvergence(responses: list[Response]) -> float | None:
    """
    Return the Kaplan–Meier median of the steps to reconverge; resets after which the reward did not recover are
    censored. Infinity if fewer than half are known to have recovered; `None` without a reset.
    """
    if not responses:
        return None
    back = [response.reconvergence for response in responses if not response.censored]
    out = [response.reconvergence for response in responses if response.censored]
    if not back:
        return float("inf")
    survival = ecdf(CensoredData(uncensored=back, right=out)).sf
    reached = survival.quantiles[survival.probabilities <= 0.5 + 1e-12]
    return float(reached[0]) if len(reached) else float("inf")


def mean_dip(responses: list[Response]) -> float | None:
    """Return the mean dip over the resets; `None` without any."""
    return float(np.mean([response.dip for response in responses])) if responses else None
