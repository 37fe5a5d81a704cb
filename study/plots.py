"""Pictures of the study, from the tables alone: learning curves, and differences with their intervals."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from eval.analysis.stability import SMOOTHING_STEPS
from eval.pages.curves import LINE_STYLES, OTHER_COLOUR
from study.matrix import Block
from study.scores import finished
from study.tables import Tables
from trl_prorl.variants import VARIANTS


BANDS = 5  # arms up to which bands can be told apart
GREY = {"color": "#999999", "linewidth": 0.8}
OBJECTIVE = "B optimises a different objective from A."
INTERVALS = "Bars: 95 % intervals. Filled: registered; hollow: exploratory."


def span(numbers: Sequence[float]) -> str:
    """`5`, or `11–12` where they differ; nothing without any."""
    return "–".join(f"{end:g}" for end in sorted({min(numbers), max(numbers)})) if len(numbers) else ""


def styles(block: Block, tables: Tables) -> dict[str, dict]:
    """Colour by variant, dashes by place within the colour; of every arm that has a run."""
    variants, found = tables.runs["variant"].groupby(level="arm").first(), {}
    with_runs = set(finished(block, tables).dropna(axis=1, how="all").columns.get_level_values(1))
    for arm in (arm for arm in block.arms if arm in with_runs):
        colour = VARIANTS[variants[arm]].colour if variants[arm] in VARIANTS else OTHER_COLOUR
        place = sum(style["color"] == colour for style in found.values())
        width = 1.6 - 0.5 * (place // len(LINE_STYLES))
        found[arm] = {"color": colour, "linestyle": LINE_STYLES[place % len(LINE_STYLES)], "linewidth": width}
    return found


def steps_of_a_mean(steps: int) -> int:
    """Steps that a running mean takes together: ten for runs of 240, more for longer ones in a picture as wide."""
    return max(SMOOTHING_STEPS, round(steps * SMOOTHING_STEPS / 240))


def rewards(tables: Tables, keys: pd.Series, together: int) -> pd.DataFrame:
    """
    The training reward of runs over steps, a running mean, a column for each pair of seeds; 0 after a stop at numbers
    that are not finite.
    """
    found = {}
    for pair, key in keys.dropna().items():
        values = tables.curves.loc[key].set_index("step")["reward"].rolling(together, min_periods=1).mean()
        found[pair] = values.reindex(range(1, key.steps + 1), fill_value=0.0)
    return pd.DataFrame(found)


def mean_with_band(series: pd.DataFrame) -> pd.DataFrame:
    """Mean over runs, the columns, at each step, with its 95 % t-interval; the ends are NaN with one run."""
    count, mean = series.shape[1], series.mean(axis=1)
    half = series.std(axis=1) / np.sqrt(count) * stats.t.ppf(0.975, count - 1) if count > 1 else np.nan
    return pd.DataFrame({"mean": mean, "low": mean - half, "high": mean + half})


def learning_curves(block: Block, tables: Tables) -> Figure | None:
    """
    The reward of every arm, and below it the reward less that of the block's first reference in the same pair; a
    column for each family. `None` without runs.
    """
    look, runs = styles(block, tables), finished(block, tables)
    counts = runs.notna().sum()[lambda count: count > 0]  # pairs by family and arm
    if counts.empty:
        return None
    families, reference = counts.index.unique(0), next(iter(block.references), None)
    bands, less = len(look) <= BANDS, reference in look and len(look) > 1
    figure = Figure(figsize=(max(7, 5 * len(families)), 3.6 * (1 + less)), layout="constrained")
    axes = figure.subplots(1 + less, len(families), squeeze=False, sharex="col", sharey="row")
    together = steps_of_a_mean(block.steps)
    for family, column in zip(families, axes.T, strict=True):
        found = {arm: rewards(tables, runs[family, arm], together) for arm in look}
        for arm, style in look.items():
            draw(column[0], found[arm], bands, label=arm, **style)
            if less and arm != reference:
                paired = (found[arm] - found[reference]).dropna(axis=1, how="all")
                draw(column[1], paired, bands, label=arm, **style)
        pairs = counts[family]
        column[0].set_title(f"{family} ({span(pairs)} pair{'s' if max(pairs) > 1 else ''})")
        column[-1].set_xlabel("optimizer step")
        if less:
            column[1].axhline(0, **GREY)
    axes[0, 0].set_ylabel(f"training reward, mean of {together} steps")
    if less:
        axes[1, 0].set_ylabel(f"less {reference} in the same pair")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    several = bands and max(counts) > 1
    return noted(figure, "Bands: 95 % t-intervals over pairs." if several else "Means over pairs.")


def draw(axes: Axes, series: pd.DataFrame, bands: bool, **style) -> None:
    curve = mean_with_band(series)
    axes.plot(curve.index, curve["mean"], **style)
    if bands and series.shape[1] > 1:
        axes.fill_between(curve.index, curve["low"], curve["high"], color=style["color"], alpha=0.10, linewidth=0)


def forest(block: Block, tables: Tables, found: pd.DataFrame) -> Figure | None:
    """
    pass@1 less a reference's with its 95 % interval, where it has one, hollow where the comparison or its block is
    exploratory: a row for each arm, a panel for each family and reference. `None` without differences.
    """
    found = found[found["reference"].isin(block.references)]
    if found.empty:
        return None
    arms, families = (
        [name for name in names if name in set(found[of])]
        for of, names in (("arm", block.arms), ("family", block.families))
    )
    references, look = found["reference"].unique(), styles(block, tables)
    size = (2.5 + 3.2 * len(families), len(references) * (1.0 + 0.26 * len(arms)))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(references), len(families), squeeze=False, sharex=True, sharey=True)
    for panel, (reference, family) in zip(axes.flat, product(references, families), strict=True):
        panel.axvline(0, **GREY)
        for one in found[(found["reference"] == reference) & (found["family"] == family)].itertuples():
            (value, *ends), colour = one.contrast.estimate, look[one.arm]["color"]
            face, place = "white" if one.exploratory else colour, len(arms) - arms.index(one.arm)
            panel.plot(value, place, "o", color=colour, markerfacecolor=face, markersize=5, zorder=3)
            panel.plot(ends, (place, place), color=colour, linewidth=1.4)
        panel.set_title(f"{family}: pass@1 less {reference}", fontsize=9)
        panel.set_yticks([len(arms) - place for place in range(len(arms))], arms)
        panel.tick_params(labelsize=8)
    axes[0, 0].set_ylim(0.3, len(arms) + 0.7)
    for panel in axes[-1]:
        panel.set_xlabel("difference of pass@1, paired", fontsize=8)
    return noted(figure, INTERVALS)


def noted(figure: Figure, said: str) -> Figure:
    """With a note below all panels, in two lines, so that narrow pictures hold all of it."""
    figure.supxlabel(f"{said}\n{OBJECTIVE}", fontsize=8, style="italic")
    return figure
