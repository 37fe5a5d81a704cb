"""Pictures of the study, from the tables alone: learning curves, and differences with their intervals."""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from study.matrix import Block
from study.scores import finished
from study.tables import Tables
from trl_prorl.eval.analysis.stability import SMOOTHING_STEPS
from trl_prorl.eval.pages.plotting import LINE_STYLES, OTHER_COLOUR
from trl_prorl.variants import VARIANTS


BANDS = 5  # arms up to which bands can be told apart
GREY = {"color": "#999999", "linewidth": 0.8}
OBJECTIVE = "B optimises a different objective from A."
INTERVALS = "Bars: 95 % intervals. Filled: registered; hollow: exploratory."


def span(numbers: Sequence[float]) -> str:
    """Write `5`, or `11–12` where they differ; nothing without any."""
    if not len(numbers):
        return ""
    ends = sorted({min(numbers), max(numbers)})
    return "–".join(f"{end:g}" for end in ends)


def arm_styles(block: Block, tables: Tables) -> dict[str, dict]:
    """Return the style of every arm that has a run: colour by variant, dashes by place within the colour."""
    variants = tables.runs["variant"].groupby(level="arm").first()
    with_runs = set(finished(block, tables).dropna(axis=1, how="all").columns.get_level_values(1))
    styles: dict[str, dict] = {}
    for arm in block.arms:
        if arm not in with_runs:
            continue
        colour = OTHER_COLOUR
        if variants[arm] in VARIANTS:
            colour = VARIANTS[variants[arm]].colour
        place = sum(style["color"] == colour for style in styles.values())
        width = 1.6 - 0.5 * (place // len(LINE_STYLES))
        styles[arm] = {"color": colour, "linestyle": LINE_STYLES[place % len(LINE_STYLES)], "linewidth": width}
    return styles


def steps_of_a_mean(steps: int) -> int:
    """
    Return the steps that a running mean takes together: ten for runs of 240, more for longer ones in a picture as
    wide.
    """
    return max(SMOOTHING_STEPS, round(steps * SMOOTHING_STEPS / 240))


def rewards(tables: Tables, keys: pd.Series, window: int) -> pd.DataFrame:
    """
    Return the training reward of runs over steps, a running mean, a column for each pair of seeds; 0 after a stop at
    numbers that are not finite.
    """
    found = {}
    for pair, key in keys.dropna().items():
        values = tables.curves.loc[key].set_index("step")["reward"].rolling(window, min_periods=1).mean()
        found[pair] = values.reindex(range(1, key.steps + 1), fill_value=0.0)
    return pd.DataFrame(found)


def mean_with_band(series: pd.DataFrame) -> pd.DataFrame:
    """
    Return the mean over runs, the columns, at each step, with its 95 % t-interval, whose ends are NaN with one run.
    """
    count = series.shape[1]
    mean = series.mean(axis=1)
    half = np.nan
    if count > 1:
        half = series.std(axis=1) / np.sqrt(count) * stats.t.ppf(0.975, count - 1)
    return pd.DataFrame({"mean": mean, "low": mean - half, "high": mean + half})


def learning_curves(block: Block, tables: Tables) -> Figure | None:
    """
    Draw the reward of every arm, and below it the reward less that of the block's first reference in the same pair; a
    column for each family. `None` without runs.
    """
    runs = finished(block, tables)
    pairs = runs.notna().sum()  # by family and arm
    pairs = pairs[pairs > 0]
    if pairs.empty:
        return None
    styles = arm_styles(block, tables)
    families = pairs.index.unique(0)
    reference = next(iter(block.references), None)
    bands = len(styles) <= BANDS
    with_differences = reference in styles and len(styles) > 1
    rows = 2 if with_differences else 1
    window = steps_of_a_mean(block.steps)
    figure = Figure(figsize=(max(7, 5 * len(families)), 3.6 * rows), layout="constrained")
    axes = figure.subplots(rows, len(families), squeeze=False, sharex="col", sharey="row")
    for family, column in zip(families, axes.T, strict=True):
        found = {arm: rewards(tables, runs[family, arm], window) for arm in styles}
        for arm, style in styles.items():
            draw(column[0], found[arm], bands, label=arm, **style)
        if with_differences:
            for arm, style in styles.items():
                if arm != reference:
                    paired = (found[arm] - found[reference]).dropna(axis=1, how="all")
                    draw(column[1], paired, bands, label=arm, **style)
            column[1].axhline(0, **GREY)
        counts = pairs[family]
        plural = "s" if max(counts) > 1 else ""
        column[0].set_title(f"{family} ({span(counts)} pair{plural})")
        column[-1].set_xlabel("optimizer step")
    axes[0, 0].set_ylabel(f"training reward, mean of {window} steps")
    if with_differences:
        axes[1, 0].set_ylabel(f"less {reference} in the same pair")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    has_bands = bands and max(pairs) > 1
    return add_note(figure, "Bands: 95 % t-intervals over pairs." if has_bands else "Means over pairs.")


def draw(axes: Axes, series: pd.DataFrame, bands: bool, **style) -> None:
    """Draw the mean over runs, the columns, and its band."""
    curve = mean_with_band(series)
    axes.plot(curve.index, curve["mean"], **style)
    if bands and series.shape[1] > 1:
        axes.fill_between(curve.index, curve["low"], curve["high"], color=style["color"], alpha=0.10, linewidth=0)


def forest(block: Block, tables: Tables, found: pd.DataFrame) -> Figure | None:
    """
    Draw pass@1 less a reference's with its 95 % interval, where it has one, hollow where the comparison or its block
    is exploratory: a row for each arm, a panel for each family and reference. `None` without differences.
    """
    found = found[found["reference"].isin(block.references)]
    if found.empty:
        return None
    arms = [arm for arm in block.arms if arm in set(found["arm"])]
    families = [family for family in block.families if family in set(found["family"])]
    references = found["reference"].unique()
    styles = arm_styles(block, tables)
    size = (2.5 + 3.2 * len(families), len(references) * (1.0 + 0.26 * len(arms)))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(references), len(families), squeeze=False, sharex=True, sharey=True)
    for panel, (reference, family) in zip(axes.flat, product(references, families), strict=True):
        panel.axvline(0, **GREY)
        for one in found[(found["reference"] == reference) & (found["family"] == family)].itertuples():
            value, low, high = one.contrast.estimate
            colour = styles[one.arm]["color"]
            face = "white" if one.exploratory else colour
            place = len(arms) - arms.index(one.arm)
            panel.plot(value, place, "o", color=colour, markerfacecolor=face, markersize=5, zorder=3)
            panel.plot([low, high], (place, place), color=colour, linewidth=1.4)
        panel.set_title(f"{family}: pass@1 less {reference}", fontsize=9)
        panel.set_yticks([len(arms) - place for place in range(len(arms))], arms)
        panel.tick_params(labelsize=8)
    axes[0, 0].set_ylim(0.3, len(arms) + 0.7)
    for panel in axes[-1]:
        panel.set_xlabel("difference of pass@1, paired", fontsize=8)
    return add_note(figure, INTERVALS)


def add_note(figure: Figure, text: str, objective: bool = True) -> Figure:
    """
    Write a note below all panels, and a second line on B's `objective` where B may be among the arms: two lines, so
    that narrow pictures hold all of it.
    """
    lines = [text, OBJECTIVE] if objective else [text]
    figure.supxlabel("\n".join(lines), fontsize=8, style="italic")
    return figure


class ThreePanels(NamedTuple):
    """A figure of two panels over steps, and a third one beside them."""

    figure: Figure
    over_steps: list[Axes]
    third: Axes

    def finish(self, note: str) -> Figure:
        """Add the legend, which the first panel has, and the note."""
        self.figure.legend(*self.over_steps[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
        return add_note(self.figure, note)


def three_panels() -> ThreePanels:
    """Make an empty figure of three panels."""
    figure = Figure(figsize=(12, 4), layout="constrained")
    first, second, third = figure.subplots(1, 3)
    return ThreePanels(figure, [first, second], third)
