"""Close-ups of resets: what reward, KL and gradient norm do in the steps around each, laid over one another."""

import numpy as np
import pandas as pd

from eval.analysis.closeups import LARGEST_WINDOW, closeup, window
from eval.pages.cells import cell
from eval.pages.curves import Curve, curves, note_not_measured, symlog_threshold
from eval.pages.document import Picture, Section
from eval.pages.objective import objective_notes, with_objective
from eval.pages.panels import Panel
from eval.pages.table import Column, Table, table_of
from eval.run_folder.run import Run


LARGEST_ROW = 4
METRICS = {
    "reward": ("Training reward", "mean reward of the batch", ".3f"),
    "kl_ref": ("KL to the anchor (kl_ref)", "nats per token (k3), symlog", ".2e"),
    "grad_norm": ("Gradient norm", "before clipping", ".3f"),
}


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
                    f"{title} from {window(arm.runs)} steps before to {window(arm.runs)} steps after each reset of "
                    f"{arm.label}",
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


def _metric_column(key: str) -> Column:
    title, _, spec = METRICS[key]

    def text(arm):
        cut = closeup(arm.runs, key, window(arm.runs))
        return f"{cell(cut.before(), spec)} → {cell(cut.after(), spec)}"

    return Column(f"{title}, before → after", text)


COLUMNS = [
    Column("arm", lambda arm: arm.label),
    Column("resets", lambda arm: str(sum(len(run.reset_steps() or []) for run in arm.runs))),
    Column("steps", lambda arm: f"±{window(arm.runs)}"),
    *map(_metric_column, METRICS),
]


def closeup_table(runs: list[Run]) -> Table:
    """Medians before and after the resets of each arm."""
    notes = [
        "Medians over all resets of an arm and all steps of the window on that side. The window is half of the "
        f"smallest gap between resets, at most {LARGEST_WINDOW} steps. After a reset the KL to the reference starts "
        "again at 0: its fall is the reset itself."
    ]
    return table_of("Reset close-ups", COLUMNS, arms_with_resets(runs), notes + objective_notes(runs))


def sections(runs: list[Run]) -> list[Section]:
    if not arms_with_resets(runs):
        return []
    table = closeup_table(runs)
    text = (
        "Every reset faint, their median strong, all seeds of an arm together. The dotted line is the reset: 0 is the "
        "last step before it, 1 the first after. The scale of a metric is the same for all arms."
    )
    picture = Picture(
        "resets.png",
        "Reward, KL and gradient norm around the resets",
        with_objective(runs, text),
        closeup_panels(runs),
        closeup_columns(runs),
    )
    return [Section(table.title, [picture, table])]
