"""Pictures of the study, from the tables alone: learning curves by family, and differences with their intervals."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from eval.analysis.smoothing import SMOOTHING_STEPS as SPAN
from eval.pages.curves import DPI, LINE_STYLES, OTHER_COLOUR
from study.differences import Difference
from study.matrix import Block, RunKey
from study.per_prompt import finished
from study.scores import Score
from study.tables import Tables
from trl_prorl.variants import VARIANTS


BANDS = 5  # arms up to which bands can be told apart
OBJECTIVE = "B optimises a different objective from A."
MARKED = "Filled: registered; hollow: exploratory."


def styles(block: Block, tables: Tables) -> dict[str, dict]:
    """Colour by variant, dashes by place within the colour; of every arm that has a run."""
    seen: dict[str, int] = {}
    found = {}
    for arm in block.arms:
        row = next((tables.runs[run.key] for run in block.runs if run.key.arm == arm and run.key in tables.runs), None)
        if row is not None:
            colour = VARIANTS[row["variant"]].colour if row["variant"] in VARIANTS else OTHER_COLOUR
            place = seen[colour] = seen.get(colour, -1) + 1
            width = 1.6 - 0.5 * (place // len(LINE_STYLES))
            found[arm] = {"color": colour, "linestyle": LINE_STYLES[place % len(LINE_STYLES)], "linewidth": width}
    return found


def span_of(steps: int) -> int:
    """Steps that a running mean takes together: ten for runs of 240, more for longer ones in a picture as wide."""
    return max(SPAN, round(steps * SPAN / 240))


def reward(tables: Tables, key: RunKey, span: int) -> pd.Series:
    """The training reward over steps, a running mean; 0 after a stop at numbers that are not finite."""
    rows = tables.curves[key]
    values = pd.Series([row["reward"] for row in rows], index=[row["step"] for row in rows], dtype=float)
    values = values.rolling(span, min_periods=1).mean()
    return values.reindex(range(1, key.steps + 1), fill_value=0.0) if len(rows) < key.steps else values


def mean_with_band(series: list[pd.Series]) -> pd.DataFrame:
    """Mean over runs at each step, with its 95 % t-interval; the ends are NaN with one run."""
    table = pd.concat(series, axis=1)
    count = table.shape[1]
    half = table.std(axis=1) / np.sqrt(count) * stats.t.ppf(0.975, count - 1) if count > 1 else np.nan
    mean = table.mean(axis=1)
    return pd.DataFrame({"mean": mean, "low": mean - half, "high": mean + half})


def learning_curves(block: Block, tables: Tables) -> Figure | None:
    """
    The reward of every arm, and below it the reward less that of the block's first reference in the same pair; a
    column for each family. `None` without runs.
    """
    families = [
        name for name in block.families if any(run.key.family == name and run.key in tables.runs for run in block.runs)
    ]
    if not families:
        return None
    look, span = styles(block, tables), span_of(max(run.key.steps for run in block.runs))
    reference = block.references[0] if block.references else None
    rows = 2 if reference in look and len(look) > 1 else 1
    figure = Figure(figsize=(max(7, 5 * len(families)), 3.6 * rows), layout="constrained")
    axes = figure.subplots(rows, len(families), squeeze=False, sharex="col", sharey="row")
    for column, family in enumerate(families):
        base = finished(block, tables, family, reference) if reference else {}
        for arm, style in look.items():
            runs = finished(block, tables, family, arm)
            curves = {pair: reward(tables, key, span) for pair, key in runs.items()}
            _draw(axes[0, column], list(curves.values()), arm, style, bands=len(look) <= BANDS)
            if rows == 2 and arm != reference:
                less = [curve - reward(tables, base[pair], span) for pair, curve in curves.items() if pair in base]
                _draw(axes[1, column], less, arm, style, bands=len(look) <= BANDS)
        pairs = {len(finished(block, tables, family, arm)) for arm in look} - {0}
        count = "–".join(str(number) for number in sorted({min(pairs), max(pairs)}))
        axes[0, column].set_title(f"{family} ({count} pair{'s' * (max(pairs) > 1)})")
        axes[-1, column].set_xlabel("optimizer step")
        if rows == 2:
            axes[1, column].axhline(0, color="#999999", linewidth=0.8)
    axes[0, 0].set_ylabel(f"training reward, mean of {span} steps")
    if rows == 2:
        axes[1, 0].set_ylabel(f"less {reference} in the same pair")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=8)
    shown = len(look) <= BANDS and any(
        len(finished(block, tables, family, arm)) > 1 for arm in look for family in families
    )
    footnote(figure, "Bands: 95 % t-intervals over pairs." if shown else "Means over pairs.", OBJECTIVE)
    return figure


def _draw(axes, series: list[pd.Series], label: str, style: dict, bands: bool) -> None:
    if not series:
        axes.plot([], [], label=label, **style)
        return
    curve = mean_with_band(series)
    axes.plot(curve.index, curve["mean"], label=label, **style)
    if bands and len(series) > 1:
        axes.fill_between(curve.index, curve["low"], curve["high"], color=style["color"], alpha=0.10, linewidth=0)


def forest(block: Block, found: list[Difference], look: dict[str, dict]) -> Figure | None:
    """
    pass@1 less a reference's with its 95 % interval: a row for each arm, a panel for each family and reference. `None`
    without differences.
    """
    panels = list(dict.fromkeys((one.reference, one.family) for one in found if one.reference in block.references))
    if not panels:
        return None
    references = list(dict.fromkeys(reference for reference, _ in panels))
    families = [name for name in block.families if any(family == name for _, family in panels)]
    arms = [arm for arm in block.arms if any(one.arm == arm for one in found)]
    size = (2.5 + 3.2 * len(families), len(references) * (1.0 + 0.26 * len(arms)))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(references), len(families), squeeze=False, sharex=True, sharey=True)
    for row, reference in enumerate(references):
        for column, family in enumerate(families):
            panel = axes[row, column]
            panel.axvline(0, color="#999999", linewidth=0.8)
            for one in found:
                if (one.reference, one.family) != (reference, family):
                    continue
                value, low, high = one.contrast.estimate
                place, colour = len(arms) - arms.index(one.arm), look[one.arm]["color"]
                panel.plot(value, place, "o", color=colour, markersize=5, zorder=3, **marking(one))
                if low == low:
                    panel.plot([low, high], [place, place], color=colour, linewidth=1.4)
            panel.set_title(f"{family}: pass@1 less {reference}", fontsize=9)
    axes[0, 0].set_yticks([len(arms) - place for place in range(len(arms))], arms)
    axes[0, 0].set_ylim(0.3, len(arms) + 0.7)
    for panel in axes.flat:
        panel.tick_params(labelsize=8)
    for panel in axes[-1]:
        panel.set_xlabel("difference of pass@1, paired", fontsize=8)
    footnote(figure, "Bars: 95 % intervals.", MARKED, OBJECTIVE)
    return figure


def marking(one: Difference | Score) -> dict[str, str]:
    """How a point is filled: hollow where a comparison, or the block of a score, is exploratory."""
    return {"markerfacecolor": "white"} if one.exploratory else {}


def footnote(figure: Figure, *sentences: str) -> None:
    """Below all panels; the last sentence has a line of its own, so that narrow pictures hold all of it."""
    *first, last = sentences
    figure.supxlabel(f"{' '.join(first)}\n{last}", fontsize=8, style="italic")


def save(figure: Figure, path) -> None:
    """As PNG, whose bytes depend on the picture alone."""
    figure.savefig(path, dpi=DPI, metadata={"Software": None})
