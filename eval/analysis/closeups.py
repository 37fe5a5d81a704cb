"""Close-ups of resets: what a metric does in the steps around each of them."""

from dataclasses import dataclass

import numpy as np

from trl_prorl.eval.run_folder.run import Run


LARGEST_WINDOW = 20
# 0 by construction in the first pass over a batch, where it says nothing.
ABOVE_ZERO = ("mean_abs_dlogp",)


@dataclass(frozen=True)
class Closeup:
    """
    One metric around every reset of an arm.

    Attributes:
        offsets (`np.ndarray`): Steps from the reset, shape (2W,): 0 is the last step before it, 1 the first after.
        values (`np.ndarray`): A row per reset, shape (R, 2W); NaN where not measured.
    """

    offsets: np.ndarray
    values: np.ndarray

    def median(self) -> np.ndarray:
        """Median over the resets, shape (2W,); NaN where no reset has a value."""
        return np.array([_median(column) for column in self.values.T])

    def before(self) -> float | None:
        """Median over resets and the steps before; `None` if nothing was measured."""
        return _median_or_none(self.values[:, self.offsets <= 0])

    def after(self) -> float | None:
        return _median_or_none(self.values[:, self.offsets > 0])


def _median(values: np.ndarray) -> float:
    values = values[~np.isnan(values)]
    return float(np.median(values)) if len(values) else float("nan")


def _median_or_none(values: np.ndarray) -> float | None:
    median = _median(values.ravel())
    return None if np.isnan(median) else median


def window(runs: list[Run]) -> int:
    """
    Half of the smallest gap between two resets of a run, so that close-ups do not overlap; at most 20, at least 1.
    """
    gaps = [gap for run in runs for gap in np.diff(run.reset_steps() or []) if gap > 0]
    return max(1, min([LARGEST_WINDOW, *(int(gap) // 2 for gap in gaps)]))


def closeup(runs: list[Run], key: str, width: int) -> Closeup:
    """
    Cut `width` steps on either side of every reset out of a metric.

    Args:
        runs (`list[Run]`): Runs of one arm; their resets are put together.
        key (`str`): Column of `metrics.jsonl`.
        width (`int`): Steps before and after a reset.
    """
    offsets = np.arange(1 - width, width + 1)
    rows = []
    for run in runs:
        values = run.measured(key)
        if values is not None and key in ABOVE_ZERO:
            values = values[values > 0]
        for step in run.reset_steps() or []:
            # `step_applied` counts the optimizer steps done: the reset lies between that step and the next.
            rows.append(
                np.full(len(offsets), np.nan) if values is None else values.reindex(step + offsets).to_numpy(float)
            )
    return Closeup(offsets, np.array(rows).reshape(-1, len(offsets)))
