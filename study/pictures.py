"""Pictures of the study, from the tables alone: learning curves, differences with their intervals, and an overview."""

import math
from itertools import product

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator, PercentFormatter
from scipy import stats

from eval.analysis.smoothing import SMOOTHING_STEPS as SPAN
from eval.pages.curves import DPI, LINE_STYLES, OTHER_COLOUR
from study.cost import COST_BASE, COSTS, relative
from study.differences import Difference
from study.matrix import Block, Matrix, RunKey
from study.scores import Score, finished
from study.tables import Tables
from trl_prorl.variants import VARIANTS


BANDS = 5  # arms up to which bands can be told apart
MARKS = ("o", "s", "^", "D")  # by family
SHIFT = 0.2  # between the families of an arm, in rows
SPANS = 10  # of the longest runs; a curve is a running mean over one of them
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
    span, bands = span_of(max(run.key.steps for run in block.runs)), len(look) <= BANDS
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


def point(axes: Axes, place: float, one: Difference | Score, colour: str, mark="o", upright=False, **line) -> None:
    """An estimate with its interval, if it has one; hollow where a comparison or a block is exploratory."""
    value, low, high = one.contrast.estimate if isinstance(one, Difference) else one.pass1
    if isinstance(one, Score):
        low, high = np.clip((low, high), 0, 1)
    face = {"markerfacecolor": "white"} if one.exploratory else {}
    dot = {"marker": mark, "linestyle": "none", "markersize": 5, "zorder": 3, **face}
    for numbers, style in (([value], dot), ([low, high], line)):
        if not math.isnan(numbers[0]):
            places = [place] * len(numbers)
            axes.plot(*((places, numbers) if upright else (numbers, places)), color=colour, **style)


def forest(block: Block, found: list[Difference], look: dict[str, dict]) -> Figure | None:
    """
    pass@1 less a reference's with its 95 % interval: a row for each arm, a panel for each family and reference. `None`
    without differences.
    """
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
    matrix: Matrix,
    tables: Tables,
    scores: list[Score],
    differences: list[Difference],
    seconds: dict[str, list[float]],
    block: str,
) -> Figure | None:
    """
    Four panels. Performance: pass@1 of a block's arms less its first reference's, by family. Length: the same
    difference, of the training reward, over the steps of the longest runs, and of pass@1 at their end, a family below
    the other. Stability: pass@1 over the learning rate. Cost: time of a whole step. `None` without differences.

    Args:
        tables ([`~study.tables.Tables`]): The runs.
        scores, differences (`list`): Of all blocks.
        seconds (`dict`): Of a whole step, by arm of `eval.step_cost`, or empty.
        block (`str`): Whose differences are shown, and whose arms and steps are followed over learning rates.
    """
    main = next((one for one in matrix.blocks if one.name == block and one.references), None)
    shown = [one for one in differences if main and (one.block, one.reference) == (block, main.references[0])]
    if not shown:
        return None
    look, long = styles(main, tables), longest(matrix, tables, main)
    figure = Figure(figsize=(11, 8.2), layout="constrained")
    grid = figure.add_gridspec(2, 2)
    _performance(figure.add_subplot(grid[0, 0]), main, shown, look)
    lengths = grid[0, 1].subgridspec(max(1, len(long)), 1).subplots(sharex=True, squeeze=False)
    _length(list(lengths[:, 0]), long, tables, differences)
    _stability(figure.add_subplot(grid[1, 0]), over_rates(matrix, main, scores), look)
    _cost(figure.add_subplot(grid[1, 1]), seconds)
    for axes in figure.axes:
        axes.tick_params(labelsize=8)
    return _noted(figure, INTERVALS)


def _empty(axes: Axes, says: str) -> None:
    axes.text(0.5, 0.5, says, ha="center", va="center", transform=axes.transAxes)
    axes.set_axis_off()


def _performance(axes: Axes, block: Block, shown: list[Difference], look: dict[str, dict]) -> None:
    arms = [arm for arm in block.arms if any(one.arm == arm for one in shown)]
    families = [name for name in block.families if any(one.family == name for one in shown)]
    _rows(axes, shown, arms, families, look, linewidth=1.2)
    for number, family in enumerate(families):
        label = _pairs(family, max(one.pairs for one in shown if one.family == family))
        axes.plot([], [], MARKS[number % len(MARKS)], color="#555555", label=label)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, frameon=False)
    axes.set_title(f"Performance: held-out pass@1 less {block.references[0]}'s", fontsize=10)
    axes.set_xlabel("difference of pass@1, paired", fontsize=9)


def _pairs(family: str, count: int) -> str:
    return f"{family}, {count} pair{'s' * (count > 1)}"


def longest(matrix: Matrix, tables: Tables, main: Block) -> dict[str, Block]:
    """By family: of the longest runs, longer than the main block's, the block with the most pairs compared."""
    steps = {block.name: max((run.key.steps for run in block.runs), default=0) for block in matrix.blocks}
    best: dict[str, tuple[int, int, Block]] = {}
    for block in (one for one in matrix.blocks if one.references and steps[one.name] > steps[main.name]):
        for family in block.families:
            there = finished(block, tables)[family].notna()
            others = there.drop(columns=block.references[0])
            pairs = others.mul(there[block.references[0]], axis=0).sum().max() if len(others.columns) else 0
            if pairs and (family not in best or (steps[block.name], pairs) > best[family][:2]):
                best[family] = (steps[block.name], pairs, block)
    most = max((found[0] for found in best.values()), default=0)
    return {family: found[2] for family, found in best.items() if found[0] == most}


def _length(panels: list[Axes], shown: dict[str, Block], tables: Tables, differences: list[Difference]) -> None:
    panels[0].set_title("Length: reward in training, and pass@1 at the end (points)", fontsize=10)
    if not shown:
        _empty(panels[0], "no longer run yet")
    for number, (axes, (family, block)) in enumerate(zip(panels, shown.items(), strict=bool(shown))):
        reference, look = block.references[0], styles(block, tables)
        runs, steps = finished(block, tables)[family], max(run.key.steps for run in block.runs)
        span, pairs = max(1, steps // SPANS), 0
        axes.axhline(0, **GREY)
        for place, (arm, style) in enumerate(look.items()):
            less = rewards_less(tables, runs, arm, reference, span) if arm != reference else []
            if not less:
                continue
            pairs = max(pairs, len(less))
            curve = mean_with_band(less)["mean"].loc[span:]
            axes.plot(curve.index, curve, label=arm, **style)
            for one in differences:
                if (one.block, one.family, one.arm, one.reference) == (block.name, family, arm, reference):
                    at = steps * (1.03 + 0.03 * place)
                    point(axes, at, one, style["color"], upright=True, linewidth=1.2)
        axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= steps])
        axes.text(0.01, 0.04, _pairs(family, pairs), transform=axes.transAxes, fontsize=8)
        axes.set_ylabel(f"less {reference}, paired", fontsize=9)
        if number == 0:
            size, columns = (8, 2) if len(panels) == 1 else (7, 3)
            axes.legend(fontsize=size, loc="upper left", ncols=columns)
        panels[-1].set_xlabel(f"optimizer step; running means of {span}", fontsize=9)


def over_rates(matrix: Matrix, main: Block, scores: list[Score]) -> dict[str, dict[float, Score]]:
    """
    By arm and learning rate: the scores of blocks that differ from the main one in nothing but the learning rate of
    their arms, in the first family that has several.
    """
    steps = {run.key.steps for run in main.runs}
    alike = {
        block.name: block
        for block in matrix.blocks
        if not block.tunes and (block.suffix or block is main) and {run.key.steps for run in block.runs} == steps
    }
    for family in main.families:
        found: dict[str, dict[float, Score]] = {}
        for one in (one for one in scores if one.block in alike and one.family == family):
            block = alike[one.block]
            rate = float(block.recipe(one.arm)["learning_rate"])
            found.setdefault(one.arm.removesuffix(block.suffix), {})[rate] = one
        if found := {arm: by_rate for arm, by_rate in found.items() if len(by_rate) > 1}:
            return found
    return {}


def _stability(axes: Axes, arms: dict[str, dict[float, Score]], look: dict[str, dict]) -> None:
    axes.set_title("Stability: pass@1 over the learning rate", fontsize=10)
    if not arms:
        return _empty(axes, "no run at another rate yet")
    rates = sorted({rate for by_rate in arms.values() for rate in by_rate})
    for number, (arm, by_rate) in enumerate(arms.items()):
        shift, colour = 1.04 ** (number - (len(arms) - 1) / 2), look[arm]["color"]  # so that bars stand apart
        points = sorted(by_rate.items())
        places, values = [rate * shift for rate, _ in points], [one.pass1.value for _, one in points]
        axes.plot(places, values, "-", linewidth=1.2, color=colour, label=arm)
        for rate, one in points:
            point(axes, rate * shift, one, colour, upright=True, linewidth=1.0, alpha=0.7)
    one = next(iter(next(iter(arms.values())).values()))
    axes.axhline(one.bases["pass@1"].value, color=OTHER_COLOUR, linewidth=1.0, linestyle="--", label="base")
    axes.set_xscale("log")
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(f"learning rate ({one.family})", fontsize=9)
    axes.set_ylim(0, None)
    axes.legend(fontsize=8)


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
