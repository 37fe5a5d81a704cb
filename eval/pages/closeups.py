"""Close-ups of resets: what reward, KL, entropy and step size do in the steps around each, laid over one another."""

import numpy as np
import pandas as pd

from trl_prorl.eval.analysis.closeups import LARGEST_WINDOW, Closeup, closeup, window
from trl_prorl.eval.analysis.pairing import ground
from trl_prorl.eval.pages.cells import cell
from trl_prorl.eval.pages.curves import Curve, curves, note_not_measured, sparse, symlog_threshold
from trl_prorl.eval.pages.document import Picture, Section
from trl_prorl.eval.pages.objective import objective_notes, with_objective
from trl_prorl.eval.pages.panels import Panel
from trl_prorl.eval.pages.sheets import Sheet, ground_titles
from trl_prorl.eval.pages.table import Column, Table, table_of
from trl_prorl.eval.run_folder.run import Run


LARGEST_ROW, MOST_ARMS = 4, 8
METRICS = {
    "reward": ("Training reward", "mean reward of the batch", ".3f"),
    "kl_ref": ("KL to the anchor (kl_ref)", "nats per token (k3), symlog", ".2e"),
    "entropy": ("Entropy of the policy", "nats per token", ".3f"),
    "mean_abs_dlogp": ("Mean |Δlogp|", "nats per token, against π_old", ".2e"),
    "grad_norm": ("Gradient norm", "before clipping", ".3f"),
}


def arms_with_resets(runs: list[Run]) -> list[Curve]:
    return [curve for curve in curves(runs) if any(run.reset_steps() for run in curve.runs)]


def closeup_columns(runs: list[Run]) -> int:
    """A column per arm, or, where they are too many for the width of a page, a column per metric."""
    arms = len(arms_with_resets(runs))
    return arms if arms <= LARGEST_ROW else len(METRICS)


def _scale(axes, key: str, measured: np.ndarray) -> None:
    """One scale for all arms, so that they compare."""
    if key == "kl_ref":
        axes.set_yscale("symlog", linthresh=symlog_threshold([pd.Series(measured)]), linscale=0.5)
        axes.set_ylim(0, 1.3 * measured.max() or 1.0)
    else:
        margin = 0.05 * (measured.max() - measured.min()) or 0.05
        axes.set_ylim(measured.min() - margin, measured.max() + margin)


def _frame(axes, key: str, title: str) -> None:
    axes.set(title=f"{title}: {METRICS[key][0]}", xlabel="steps from the reset", ylabel=METRICS[key][1])
    axes.axvline(0.5, color="#555555", linewidth=1, linestyle=":")
    axes.grid(alpha=0.2)


def _line(axes, cut: Closeup, values: np.ndarray, **style) -> None:
    """A line through what was measured."""
    known = ~np.isnan(values)
    axes.plot(cut.offsets[known], values[known], **style)


def _arm_panel(arm: Curve, key: str, cut: Closeup, measured: np.ndarray) -> Panel:
    """Every reset of an arm faint, their median strong."""

    def draw(axes):
        _frame(axes, key, arm.label)
        if np.isnan(cut.values).all():
            note_not_measured(axes)
            return
        for values in cut.values:
            _line(axes, cut, values, color=arm.style["color"], linewidth=0.7, alpha=_faint(len(cut.values)))
        label = f"median of {len(cut.values)} {'reset' if len(cut.values) == 1 else 'resets'}"
        _line(axes, cut, cut.median(), linewidth=2.2, label=label, **arm.style)
        _scale(axes, key, measured)

    width = window(arm.runs)
    alt = f"{METRICS[key][0]} from {width} steps before to {width} steps after each reset of {arm.label}"
    return Panel(alt, draw)


def _medians_panel(sheet: Sheet, key: str, cuts: list[Closeup]) -> Panel:
    """The median over the resets of each of several arms."""

    def draw(axes):
        _frame(axes, key, sheet.title)
        medians = [(arm, cut, cut.median()) for arm, cut in zip(sheet.curves, cuts, strict=True)]
        medians = [(arm, cut, median) for arm, cut, median in medians if not np.isnan(median).all()]
        if not medians:
            note_not_measured(axes)
            return
        for arm, cut, median in medians:
            _line(axes, cut, median, linewidth=1.8, label=f"{arm.label}: {len(cut.values)}", **sparse(arm.style))
        _scale(axes, key, np.concatenate([median[~np.isnan(median)] for _, _, median in medians]))

    return Panel(f"{METRICS[key][0]} around the resets of {sheet.title}, median of each arm", draw)


def closeup_panels(runs: list[Run]) -> list[Panel]:
    """
    A panel per metric and arm, row by row of [`closeup_columns`] panels; of more than 8 arms a panel per metric, task
    and variant, with the medians alone.
    """
    arms = arms_with_resets(runs)
    if len(arms) > MOST_ARMS:
        groups = {}
        for arm in arms:
            groups.setdefault((ground(arm.runs[0]), arm.variant), []).append(arm)
        titles = ground_titles(arms)
        named = [Sheet(", ".join(filter(None, [who, titles[at]])), group) for (at, who), group in groups.items()]
        return [
            _medians_panel(sheet, key, [closeup(arm.runs, key, window(arm.runs)) for arm in sheet.curves])
            for sheet in named
            for key in METRICS
        ]
    rows = []
    for key in METRICS:
        cuts = [closeup(arm.runs, key, window(arm.runs)) for arm in arms]
        measured = np.concatenate([cut.values[~np.isnan(cut.values)] for cut in cuts])
        rows.append([_arm_panel(arm, key, cut, measured) for arm, cut in zip(arms, cuts, strict=True)])
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
        "again at 0: its fall is the reset itself. Mean |Δlogp| is that of the passes in which it is above 0: in the "
        "first pass over a batch the policy is π_old."
    ]
    return table_of("Reset close-ups", COLUMNS, arms_with_resets(runs), notes + objective_notes(runs))


def sections(runs: list[Run]) -> list[Section]:
    if not arms_with_resets(runs):
        return []
    table = closeup_table(runs)
    if len(arms_with_resets(runs)) > MOST_ARMS:
        lines = "The median over all resets and seeds of each arm, whose number the legend gives."
    else:
        lines = (
            "Every reset faint, their median strong, all seeds of an arm together. The scale of a metric is the same "
            "for all arms."
        )
    text = f"{lines} The dotted line is the reset: 0 is the last step before it, 1 the first after."
    picture = Picture(
        "resets.png",
        "Reward, KL, entropy, mean |Δlogp| and gradient norm around the resets",
        with_objective(runs, text),
        closeup_panels(runs),
        closeup_columns(runs),
    )
    return [Section(table.title, [picture, table])]
