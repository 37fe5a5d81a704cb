"""Close-ups of resets: what reward, KL and gradient norm do in the steps around each, laid over one another."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from eval.panels import Panel
from eval.plots import Curve, curves, note_not_measured, symlog_threshold
from eval.runs import Run
from eval.tables import Table, cell, objective_notes


LARGEST_WINDOW = 20
LARGEST_ROW = 4
METRICS = {
    "reward": ("Training reward", "mean reward of the batch", ".3f"),
    "kl_ref": ("KL to the anchor (kl_ref)", "nats per token (k3), symlog", ".2e"),
    "grad_norm": ("Gradient norm", "before clipping", ".3f"),
}


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
    """Half of the smallest gap between two resets of a run, so that close-ups do not overlap; at most 20, at least 1."""
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
        for step in run.reset_steps() or []:
            # `step_applied` counts the optimizer steps done: the reset lies between that step and the next.
            rows.append(
                np.full(len(offsets), np.nan) if values is None else values.reindex(step + offsets).to_numpy(float)
            )
    return Closeup(offsets, np.array(rows).reshape(-1, len(offsets)))


def arms_with_resets(runs: list[Run]) -> list[Curve]:
    return [curve for curve in curves(runs) if any(run.reset_steps() for run in curve.runs)]


def closeup_columns(runs: list[Run]) -> int:
    """A column per arm, or, where they are too many for the width of a page, a row per arm and a column per metric."""
    arms = len(arms_with_resets(runs))
    return arms if arms <= LARGEST_ROW else len(METRICS)


def closeup_panels(runs: list[Run]) -> list[Panel]:
    """A panel per metric and arm: every reset faint, their median strong; row by row of [`closeup_columns`] panels."""
    arms = arms_with_resets(runs)
    rows = []
    for key, (title, unit, _) in METRICS.items():
        cuts = [closeup(arm.runs, key, window(arm.runs)) for arm in arms]
        measured = np.concatenate([cut.values[~np.isnan(cut.values)] for cut in cuts])

        # The loop's values as defaults, so that each panel keeps its own.
        def draw(axes, arm, cut, key=key, title=title, unit=unit, measured=measured):
            axes.set(title=f"{arm.label}: {title}", xlabel="steps from the reset", ylabel=unit)
            axes.axvline(0.5, color="#555555", linewidth=1, linestyle=":")
            axes.grid(alpha=0.2)
            if np.isnan(cut.values).all():
                note_not_measured(axes)
                return
            axes.plot(
                cut.offsets, cut.values.T, color=arm.style["color"], linewidth=0.7, alpha=_faint(len(cut.values))
            )
            label = f"median of {len(cut.values)} {'reset' if len(cut.values) == 1 else 'resets'}"
            axes.plot(cut.offsets, cut.median(), linewidth=2.2, label=label, **arm.style)
            # One scale for all arms, so that they compare.
            if key == "kl_ref":
                axes.set_yscale("symlog", linthresh=symlog_threshold([pd.Series(measured)]), linscale=0.5)
                axes.set_ylim(0, 1.3 * measured.max() or 1.0)
            else:
                margin = 0.05 * (measured.max() - measured.min()) or 0.05
                axes.set_ylim(measured.min() - margin, measured.max() + margin)

        rows.append(
            [
                Panel(
                    f"{title} from {window(arm.runs)} steps before to {window(arm.runs)} steps after each reset of {arm.label}",
                    lambda axes, arm=arm, cut=cut, draw=draw: draw(axes, arm, cut),
                )
                for arm, cut in zip(arms, cuts, strict=True)
            ]
        )
    if len(arms) > LARGEST_ROW:
        rows = zip(*rows, strict=True)
    return [panel for row in rows for panel in row]


def _faint(resets: int) -> float:
    return min(0.5, max(0.06, 3 / resets))


def closeup_table(runs: list[Run]) -> Table:
    """Medians before and after the resets of each arm."""
    rows = []
    for arm in arms_with_resets(runs):
        width = window(arm.runs)
        row = [arm.label, str(sum(len(run.reset_steps() or []) for run in arm.runs)), f"±{width}"]
        for key, (_, _, spec) in METRICS.items():
            cut = closeup(arm.runs, key, width)
            row.append(f"{cell(cut.before(), spec)} → {cell(cut.after(), spec)}")
        rows.append(row)
    header = ["arm", "resets", "steps", *(f"{title}, before → after" for title, _, _ in METRICS.values())]
    notes = [
        "Medians over all resets of an arm and all steps of the window on that side. The window is half of the smallest gap "
        f"between resets, at most {LARGEST_WINDOW} steps. After a reset the KL to the reference starts again at 0: its fall "
        "is the reset itself."
    ]
    return Table("Reset close-ups", header, rows, notes + objective_notes(runs))
