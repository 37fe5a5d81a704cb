"""Metrics aligned at resets; dip and reconvergence of the reward."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import CensoredData, ecdf


BEFORE = 10  # steps of the level before a reset
AFTER = 5  # steps of the running mean after it
AROUND = (10, 20)  # steps before and after a reset that are aligned with those of other resets
LEAST_SHARE = 0.5  # share of the resets that must have a value for a mean over resets
MIDDLE = (10, 90)  # percentiles over resets that bound a band


@dataclass(frozen=True)
class Response:
    """
    The reward after one reset: the step at which it was applied, the level before it, the dip below that level, and
    the steps until recovery; `censored` if it did not recover before the next reset or the end.
    """

    step: int
    before: float
    dip: float
    reconvergence: int
    censored: bool


def reset_responses(
    steps: np.ndarray, reward: np.ndarray, resets: list[int], before: int = BEFORE, after: int = AFTER
) -> list[Response]:
    """
    Return dip and reconvergence at each reset of a run, in the order of the steps. Resets without a measured reward
    before them, or without a complete window after them, are skipped.

    The *level before* is the mean reward of the last `before` steps up to the reset and after the previous one. After
    the reset, a running mean over `after` steps is taken over steps after it, up to the next reset. The *dip* is the
    level before − the lowest of these means, 0 if none is lower. The *reconvergence* is the number of steps from the
    reset to the first window whose mean reaches the level before: 0 if the first `after` steps do.

    Noise alone causes a dip: the lowest of many means is below the level before even in a run without resets. So
    compare with [`reset_responses`] of a run without resets at the same steps.

    Args:
        steps, reward (`np.ndarray`): Optimizer steps done, shape (T,), increasing, and the reward of each; NaN if not
            measured.
        resets (`list[int]`): Optimizer steps done at each reset: it is between that step and the next.
    """
    steps, reward = _measured(steps, reward)
    edges = sorted(set(resets))
    responses = []
    before_each = [-np.inf, *edges[:-1]]
    after_each = [*edges[1:], np.inf]
    for previous, reset, following in zip(before_each, edges, after_each, strict=False):
        level = reward[(steps > max(previous, reset - before)) & (steps <= reset)]
        watched = reward[(steps > reset) & (steps <= following)]
        if not len(level) or len(watched) < after:
            continue
        means = np.lib.stride_tricks.sliding_window_view(watched, after).mean(axis=1)
        # A mean that is equal up to rounding counts as recovered.
        back = np.flatnonzero(means >= level.mean() - 1e-12)
        responses.append(
            Response(
                step=int(reset),
                before=float(level.mean()),
                dip=max(0.0, float(level.mean() - means.min())),
                reconvergence=int(back[0]) if len(back) else len(means),
                censored=not len(back),
            )
        )
    return responses


def align_at_resets(
    steps: np.ndarray, values: np.ndarray, resets: list[int], before: int = AROUND[0], after: int = AROUND[1]
) -> np.ndarray:
    """
    Return a metric around each reset of a run, shape (R, before + after), a row for each reset in the order of the
    steps: first the last `before` steps up to the reset, then the first `after` steps after it.

    Values are NaN if not measured, at steps beyond the run, and beyond the previous and the next reset, because those
    belong to another reset.

    Args:
        steps, values (`np.ndarray`): Optimizer steps done, shape (T,), each once, and the metric at each; NaN if not
            measured.
        resets (`list[int]`): Optimizer steps done at each reset: it is between that step and the next.
        before, after (`int`): Steps on either side.
    """
    value_at = dict(zip(np.asarray(steps).tolist(), np.asarray(values, float).tolist(), strict=True))
    edges = sorted(set(resets))
    aligned = np.full((len(edges), before + after), np.nan)
    for row, reset in enumerate(edges):
        first = reset - before + 1
        last = reset + after
        if row > 0:
            first = max(first, edges[row - 1] + 1)
        if row + 1 < len(edges):
            last = min(last, edges[row + 1])
        for step in range(first, last + 1):
            aligned[row, step - (reset - before + 1)] = value_at.get(step, np.nan)
    return aligned


def band_over_resets(aligned: np.ndarray, before: int = AROUND[0], least: float = LEAST_SHARE) -> pd.DataFrame:
    """
    Return mean, 10th and 90th percentile over resets, as `mean`, `low` and `high`, by the steps since the reset: 0 is
    the last step before it, 1 the first after it.

    A step is skipped if less than the share `least` of the resets have a value: near the ends of a run, or between
    close resets, few would remain, and their mean would jump.

    Args:
        aligned (`np.ndarray`): From [`align_at_resets`], concatenated over runs, shape (R, T). Resets without any
            value do not count.
        before (`int`): Number of columns before the reset.
        least (`float`): Share in [0, 1].
    """
    aligned = aligned[~np.isnan(aligned).all(axis=1)]
    counts = (~np.isnan(aligned)).sum(axis=0)
    shown = np.flatnonzero((counts > 0) & (counts >= least * len(aligned)))
    low, high = np.nanpercentile(aligned[:, shown], MIDDLE, axis=0)
    columns = {"mean": np.nanmean(aligned[:, shown], axis=0), "low": low, "high": high}
    return pd.DataFrame(columns, index=shown + 1 - before)


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


def _measured(steps: np.ndarray, reward: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Drop the steps at which no reward was measured."""
    reward = np.asarray(reward, float)
    measured = ~np.isnan(reward)
    return np.asarray(steps)[measured], reward[measured]
