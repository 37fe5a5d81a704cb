"""Pictures of the study, from the tables alone: learning curves, differences with their intervals, and an overview."""

import json
import math
from collections.abc import Sequence
from itertools import cycle, product
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from scipy import stats

from eval.analysis.stability import SMOOTHING_STEPS
from eval.analysis.statistics import Estimate
from eval.pages.curves import LINE_STYLES, OTHER_COLOUR
from study.matrix import Block
from study.scores import finished
from study.tables import FOLDER, Tables
from trl_prorl.errors import InputError
from trl_prorl.variants import VARIANTS


COST_FILE = "step_cost.json"  # `arms.json` of eval.step_cost
# Arms of eval.step_cost, from above, and the variant whose colour they take.
COSTS = {"TRL β>0": None, "TRL β=0": None, **{f"{name} packed": name for name in ("plain", "A", "B", "C")}}
COST_BASE = "A packed"
ROUNDS = "whole"  # every round's seconds of a whole step, generation included
BANDS = 5  # arms up to which bands can be told apart
MARKS = ("o", "s", "^", "D")  # by family
SHIFT = 0.2  # between the families of an arm, in rows
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
    pass@1 less a reference's with its 95 % interval: a row for each arm, a panel for each family and reference. `None`
    without differences.
    """
    found = found[found["reference"].isin(block.references)]
    if found.empty:
        return None
    arms, families = _shown(block, found)
    references, look = found["reference"].unique(), styles(block, tables)
    size = (2.5 + 3.2 * len(families), len(references) * (1.0 + 0.26 * len(arms)))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(references), len(families), squeeze=False, sharex=True, sharey=True)
    for panel, (reference, family) in zip(axes.flat, product(references, families), strict=True):
        held = found[(found["reference"] == reference) & (found["family"] == family)]
        _rows(panel, held, arms, [family], look, linewidth=1.4)
        panel.set_title(f"{family}: pass@1 less {reference}", fontsize=9)
        panel.tick_params(labelsize=8)
    axes[0, 0].set_ylim(0.3, len(arms) + 0.7)
    for panel in axes[-1]:
        panel.set_xlabel("difference of pass@1, paired", fontsize=8)
    return noted(figure, INTERVALS)


def _shown(block: Block, found: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Arms and families that have differences, in the order of the block."""
    arms = [arm for arm in block.arms if arm in set(found["arm"])]
    return arms, [family for family in block.families if family in set(found["family"])]


def _rows(axes: Axes, found: pd.DataFrame, arms: list[str], families: list[str], look: dict, linewidth: float) -> None:
    """
    Differences with their intervals, where they have one, a row for each arm, the families beside one another within
    it; hollow where the comparison or its block is exploratory.
    """
    axes.axvline(0, **GREY)
    for one in found.itertuples():
        number, colour, (value, low, high) = families.index(one.family), look[one.arm]["color"], one.contrast.estimate
        place = len(arms) - arms.index(one.arm) + SHIFT * ((len(families) - 1) / 2 - number)
        face = "white" if one.exploratory else colour
        axes.plot(value, place, MARKS[number % len(MARKS)], color=colour, markerfacecolor=face, markersize=5, zorder=3)
        if not math.isnan(low):
            axes.plot((low, high), (place, place), color=colour, linewidth=linewidth)
    axes.set_yticks([len(arms) - place for place in range(len(arms))], arms)


def noted(figure: Figure, said: str) -> Figure:
    """With a note below all panels, in two lines, so that narrow pictures hold all of it."""
    figure.supxlabel(f"{said}\n{OBJECTIVE}", fontsize=8, style="italic")
    return figure


def overview(found: list[tuple[Block, pd.DataFrame]], tables: Tables, seconds: pd.DataFrame) -> Figure | None:
    """
    Four panels, from blocks with their differences and the `seconds` of a whole step by arm of `eval.step_cost`.
    Performance: pass@1 of the first block's arms less its first reference's, by family. Length: the same in the block
    of the longest runs. Stability: the same at the largest learning rate. Cost: time of a whole step. `None` where the
    first block has nothing to show.
    """
    shown = [(block, held[held["reference"].isin(block.references[:1])]) for block, held in found]
    shown = [(block, held) for block, held in shown if len(held)]
    if not shown or shown[0][0] is not (main := found[0][0]):
        return None
    longer = [one for one in shown if one[0].steps > main.steps]
    faster = [one for one in shown if one[0].steps == main.steps and one[0].rate > main.rate]
    panels = {
        "Performance: held-out pass@1": shown[0],
        "Length: the longest runs": max(longer, key=lambda one: (one[0].steps, len(one[0].runs)), default=None),
        "Stability: the largest learning rate": max(faster, key=lambda one: one[0].rate, default=None),
    }
    figure = Figure(figsize=(11, 8.2), layout="constrained")
    grid = figure.subplots(2, 2).flat
    for axes, (title, one) in zip(grid, panels.items(), strict=False):
        axes.set_title(title, fontsize=10)
        if one is None:
            _empty(axes, "no such runs yet")
        else:
            _by_family(axes, *one, styles(one[0], tables))
    grid[-1].set_title("Cost: time of a whole step", fontsize=10)
    if COST_BASE in seconds:
        _cost(grid[-1], seconds)
    else:
        _empty(grid[-1], "not measured")
    for axes in figure.axes:
        axes.tick_params(labelsize=8)
    return noted(figure, INTERVALS)


def _empty(axes: Axes, says: str) -> None:
    axes.text(0.5, 0.5, says, ha="center", va="center", transform=axes.transAxes)
    axes.set_axis_off()


def _by_family(axes: Axes, block: Block, found: pd.DataFrame, look: dict) -> None:
    arms, families = _shown(block, found)
    _rows(axes, found, arms, families, look, linewidth=1.2)
    pairs = found.groupby("family")["pairs"].max()
    for mark, family in zip(cycle(MARKS), families, strict=False):
        label = f"{family}, {pairs[family]} pair{'s' if pairs[family] > 1 else ''}"
        axes.plot([], [], mark, color="#555555", label=label)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, frameon=False)
    of = f"{block.steps:,} steps, learning rate {block.rate:g}"
    axes.set_xlabel(f"pass@1 less {block.references[0]}'s, paired; {of}", fontsize=9)


def _cost(axes: Axes, seconds: pd.DataFrame) -> None:
    arms = list(reversed(seconds.columns))
    for place, arm in enumerate(arms):
        value, low, high = relative(seconds, arm, COST_BASE)
        axes.barh(place, value, color=VARIANTS[COSTS[arm]].colour if COSTS[arm] else OTHER_COLOUR)
        if not math.isnan(low):
            for width, colour in ((3.0, "#FFFFFF"), (1.2, "#000000")):  # seen on a black bar, too
                axes.plot([low, high], [place, place], color=colour, linewidth=width)
        axes.text(np.fmax(value, high), place, f" {value:.0%}", va="center", fontsize=8)
    axes.set_yticks(range(len(arms)), [arm.removesuffix(" packed") for arm in arms])
    axes.set_xlim(0, 1.15 * axes.get_xlim()[1])
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("of A's step, at the lengths of GSM8K's answers", fontsize=8)


def rounds(root: Path) -> pd.DataFrame:
    """
    Seconds of a whole step, a column for each of the `COSTS` that was measured, a row for each round; the rounds of
    all arms belong together. Empty without the file; an `InputError` if it is not what `eval.step_cost` writes.
    """
    path = root / FOLDER / COST_FILE
    if not path.is_file():
        return pd.DataFrame()
    try:
        (result,) = json.loads(path.read_text())["results"].values()
        seconds = pd.DataFrame({arm: values[ROUNDS] for arm, values in result.items()}, dtype=float)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}: not the arms.json of one setting of eval.step_cost ({error!r}); copy it anew"
        ) from None
    return seconds[[arm for arm in COSTS if arm in seconds]]


def relative(seconds: pd.DataFrame, arm: str, other: str) -> Estimate:
    """
    The time that one arm's step takes of another's: the median over paired rounds, with the interval of the median by
    the sign test (at least 95 %; no interval with fewer than 6 rounds).
    """
    ratios = seconds[arm] / seconds[other]
    low, high = stats.quantile_test(ratios, p=0.5).confidence_interval(0.95)
    return Estimate(float(ratios.median()), float(low), float(high))
