"""Pictures of the study, from the tables alone: learning curves, differences with their intervals, and an overview."""

import json
import math
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from scipy import stats

from eval.analysis.stability import SMOOTHING_STEPS as SPAN
from eval.analysis.statistics import Estimate
from eval.pages.curves import DPI, LINE_STYLES, OTHER_COLOUR
from study.differences import Difference
from study.matrix import Block, Matrix, RunKey
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


def styles(block: Block, tables: Tables) -> dict[str, dict]:
    """Colour by variant, dashes by place within the colour; of every arm that has a run."""
    runs, variants, found = finished(block, tables), tables.runs["variant"].groupby(level="arm").first(), {}
    for arm in block.arms:
        if runs.xs(arm, axis=1, level=1).isna().all(axis=None):
            continue
        variant = VARIANTS.get(variants[arm])
        colour = variant.colour if variant else OTHER_COLOUR
        place = sum(style["color"] == colour for style in found.values())
        width = 1.6 - 0.5 * (place // len(LINE_STYLES))
        found[arm] = {"color": colour, "linestyle": LINE_STYLES[place % len(LINE_STYLES)], "linewidth": width}
    return found


def span_of(steps: int) -> int:
    """Steps that a running mean takes together: ten for runs of 240, more for longer ones in a picture as wide."""
    return max(SPAN, round(steps * SPAN / 240))


def reward(tables: Tables, key: RunKey, span: int) -> pd.Series:
    """The training reward over steps, a running mean; 0 after a stop at numbers that are not finite."""
    values = tables.curves.loc[key].set_index("step")["reward"].rolling(span, min_periods=1).mean()
    return values.reindex(range(1, key.steps + 1), fill_value=0.0) if len(values) < key.steps else values


def rewards_less(tables: Tables, runs: pd.DataFrame, arm: str, reference: str, span: int) -> list[pd.Series]:
    """The reward of each run of an arm less that of the reference's run of the same pair, in one family."""
    both = runs[[arm, reference]].dropna().itertuples(index=False)
    return [reward(tables, key, span) - reward(tables, other, span) for key, other in both]


def mean_with_band(series: list[pd.Series]) -> pd.DataFrame:
    """Mean over runs at each step, with its 95 % t-interval; the ends are NaN with one run."""
    table = pd.concat(series, axis=1)
    count, mean = table.shape[1], table.mean(axis=1)
    half = table.std(axis=1) / np.sqrt(count) * stats.t.ppf(0.975, count - 1) if count > 1 else np.nan
    return pd.DataFrame({"mean": mean, "low": mean - half, "high": mean + half})


def learning_curves(block: Block, tables: Tables) -> Figure | None:
    """
    The reward of every arm, and below it the reward less that of the block's first reference in the same pair; a
    column for each family. `None` without runs.
    """
    look, runs = styles(block, tables), finished(block, tables)
    families = [family for family in block.families if runs[family].notna().any(axis=None)]
    if not families:
        return None
    span, bands = span_of(block.steps), len(look) <= BANDS
    reference = block.references[0] if block.references else None
    rows = 2 if reference in look and len(look) > 1 else 1
    figure = Figure(figsize=(max(7, 5 * len(families)), 3.6 * rows), layout="constrained")
    axes = figure.subplots(rows, len(families), squeeze=False, sharex="col", sharey="row")
    axes[0, 0].set_ylabel(f"training reward, mean of {span} steps")
    for column, family in enumerate(families):
        for arm, style in look.items():
            rewards = [reward(tables, key, span) for key in runs[family][arm].dropna()]
            _draw(axes[0, column], rewards, arm, style, bands)
            if rows == 2 and arm != reference:
                less = rewards_less(tables, runs[family], arm, reference, span)
                _draw(axes[1, column], less, arm, style, bands)
        pairs = set(runs[family].notna().sum()) - {0}
        count = "–".join(str(number) for number in sorted({min(pairs), max(pairs)}))
        axes[0, column].set_title(f"{family} ({count} pair{'s' * (max(pairs) > 1)})")
        axes[-1, column].set_xlabel("optimizer step")
        if rows == 2:
            axes[1, column].axhline(0, **GREY)
            axes[1, 0].set_ylabel(f"less {reference} in the same pair")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=8)
    several = bands and (runs.notna().sum() > 1).any()
    return _noted(figure, "Bands: 95 % t-intervals over pairs." if several else "Means over pairs.")


def _draw(axes: Axes, series: list[pd.Series], label: str, style: dict, bands: bool) -> None:
    curve = mean_with_band(series) if series else pd.DataFrame({"mean": []})
    axes.plot(curve.index, curve["mean"], label=label, **style)
    if bands and len(series) > 1:
        axes.fill_between(curve.index, curve["low"], curve["high"], color=style["color"], alpha=0.10, linewidth=0)


def point(axes: Axes, place: float, one: Difference, colour: str, mark: str = "o", **line) -> None:
    """A difference with its interval, if it has one; hollow where the comparison or its block is exploratory."""
    value, low, high = one.contrast.estimate
    face = "white" if one.exploratory else colour
    axes.plot(value, place, mark, color=colour, markerfacecolor=face, markersize=5, zorder=3)
    if not math.isnan(low):
        axes.plot((low, high), (place, place), color=colour, **line)


def forest(block: Block, tables: Tables, found: list[Difference]) -> Figure | None:
    """
    pass@1 less a reference's with its 95 % interval: a row for each arm, a panel for each family and reference. `None`
    without differences.
    """
    look = styles(block, tables)
    references = list(dict.fromkeys(one.reference for one in found if one.reference in block.references))
    if not references:
        return None
    families = [name for name in block.families if any(one.family == name for one in found)]
    arms = [arm for arm in block.arms if any(one.arm == arm for one in found)]
    size = (2.5 + 3.2 * len(families), len(references) * (1.0 + 0.26 * len(arms)))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(references), len(families), squeeze=False, sharex=True, sharey=True)
    for panel, (reference, family) in zip(axes.flat, product(references, families), strict=True):
        shown = [one for one in found if (one.reference, one.family) == (reference, family)]
        _rows(panel, shown, arms, [family], look, linewidth=1.4)
        panel.set_title(f"{family}: pass@1 less {reference}", fontsize=9)
        panel.tick_params(labelsize=8)
    axes[0, 0].set_ylim(0.3, len(arms) + 0.7)
    for panel in axes[-1]:
        panel.set_xlabel("difference of pass@1, paired", fontsize=8)
    return _noted(figure, INTERVALS)


def _rows(axes: Axes, found: list[Difference], arms: list[str], families: list[str], look: dict, **line) -> None:
    """Differences, a row for each arm, the families beside one another within it."""
    axes.axvline(0, **GREY)
    for one in found:
        number = families.index(one.family)
        place = len(arms) - arms.index(one.arm) + SHIFT * ((len(families) - 1) / 2 - number)
        point(axes, place, one, look[one.arm]["color"], MARKS[number % len(MARKS)], **line)
    axes.set_yticks([len(arms) - place for place in range(len(arms))], arms)


def _noted(figure: Figure, said: str) -> Figure:
    """With a note below all panels, in two lines, so that narrow pictures hold all of it."""
    figure.supxlabel(f"{said}\n{OBJECTIVE}", fontsize=8, style="italic")
    return figure


def save(figure: Figure, path) -> None:
    """As PNG, whose bytes depend on the picture alone."""
    figure.savefig(path, dpi=DPI, metadata={"Software": None})


def overview(
    matrix: Matrix, tables: Tables, differences: list[Difference], seconds: dict[str, list[float]], block: str
) -> Figure | None:
    """
    Four panels, from the differences of all blocks and the `seconds` of a whole step by arm of `eval.step_cost`.
    Performance: pass@1 of a block's arms less its first reference's, by family. Length: the same in the block of the
    longest runs. Stability: the same at the largest learning rate. Cost: time of a whole step. `None` without any.
    """
    shown = {
        one: held
        for one in matrix.blocks
        if (held := [each for each in differences if (each.block, each.reference) == (one.name, *one.references[:1])])
    }
    main = next((one for one in shown if one.name == block), None)
    if main is None:
        return None
    longer = [one for one in shown if one.steps > main.steps]
    faster = [one for one in shown if one.steps == main.steps and one.rate > main.rate]
    panels = {
        "Performance: held-out pass@1": main,
        "Length: the longest runs": max(longer, key=lambda one: (one.steps, len(one.runs)), default=None),
        "Stability: the largest learning rate": max(faster, key=lambda one: one.rate, default=None),
    }
    figure = Figure(figsize=(11, 8.2), layout="constrained")
    grid = figure.subplots(2, 2).flat
    for axes, (title, one) in zip(grid, panels.items(), strict=False):
        axes.set_title(title, fontsize=10)
        if one is None:
            _empty(axes, "no such runs yet")
        else:
            _by_family(axes, one, tables, shown[one])
    _cost(grid[-1], seconds)
    for axes in figure.axes:
        axes.tick_params(labelsize=8)
    return _noted(figure, INTERVALS)


def _empty(axes: Axes, says: str) -> None:
    axes.text(0.5, 0.5, says, ha="center", va="center", transform=axes.transAxes)
    axes.set_axis_off()


def _by_family(axes: Axes, block: Block, tables: Tables, shown: list[Difference]) -> None:
    arms = [arm for arm in block.arms if any(one.arm == arm for one in shown)]
    families = [name for name in block.families if any(one.family == name for one in shown)]
    _rows(axes, shown, arms, families, styles(block, tables), linewidth=1.2)
    for number, family in enumerate(families):
        pairs = max(one.pairs for one in shown if one.family == family)
        label = f"{family}, {pairs} pair{'s' * (pairs > 1)}"
        axes.plot([], [], MARKS[number % len(MARKS)], color="#555555", label=label)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, frameon=False)
    of = f"{block.steps:,} steps, learning rate {block.rate:g}"
    axes.set_xlabel(f"pass@1 less {block.references[0]}'s, paired; {of}", fontsize=9)


def _cost(axes: Axes, seconds: dict[str, list[float]]) -> None:
    axes.set_title("Cost: time of a whole step", fontsize=10)
    arms = [arm for arm in COSTS if arm in seconds]
    if COST_BASE not in arms:
        return _empty(axes, "not measured")
    for place, arm in enumerate(reversed(arms)):
        value, low, high = relative(seconds, arm, COST_BASE)
        axes.barh(place, value, color=VARIANTS[COSTS[arm]].colour if COSTS[arm] else OTHER_COLOUR)
        if not math.isnan(low):
            for width, colour in ((3.0, "#FFFFFF"), (1.2, "#000000")):  # seen on a black bar, too
                axes.plot([low, high], [place, place], color=colour, linewidth=width)
        end = value if math.isnan(high) else max(value, high)
        axes.text(end, place, f" {value:.0%}", va="center", fontsize=8)
    axes.set_yticks(range(len(arms)), reversed([arm.removesuffix(" packed") for arm in arms]))
    axes.set_xlim(0, 1.15 * axes.get_xlim()[1])
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("of A's step, at the lengths of GSM8K's answers", fontsize=8)


def rounds(root: Path) -> dict[str, list[float]]:
    """
    Seconds of a whole step by arm, one for each round; the rounds of all arms belong together. Empty without the file;
    an `InputError` if it is not what `eval.step_cost` writes.
    """
    path = root / FOLDER / COST_FILE
    if not path.is_file():
        return {}
    try:
        (result,) = json.loads(path.read_text())["results"].values()
        seconds = {arm: [float(value) for value in values[ROUNDS]] for arm, values in result.items()}
        if len(set(map(len, seconds.values()))) != 1:
            raise ValueError("arms have different numbers of rounds")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}: not the arms.json of one setting of eval.step_cost ({error!r}); copy it anew"
        ) from None
    return seconds


def relative(seconds: dict[str, list[float]], arm: str, other: str) -> Estimate:
    """
    The time that one arm's step takes of another's: the median over paired rounds, with the interval of the median by
    the sign test (at least 95 %; no interval with fewer than 6 rounds).
    """
    ratios = [mine / theirs for mine, theirs in zip(seconds[arm], seconds[other], strict=True)]
    low, high = stats.quantile_test(ratios, p=0.5).confidence_interval(0.95)
    return Estimate(median(ratios), float(low), float(high))
