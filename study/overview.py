"""The study in one picture: performance, length, stability and cost."""

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator, PercentFormatter

from eval.pages.curves import OTHER_COLOUR
from study.cost import relative
from study.differences import Difference
from study.figures import MARKED, OBJECTIVE, footnote, marking, mean_with_band, reward, styles
from study.matrix import Block, Matrix
from study.per_prompt import finished
from study.scores import Score
from study.tables import Tables
from trl_prorl.variants import VARIANTS


MARKS = ("o", "s", "^", "D")  # by family
SHIFT = 0.2  # between the families of an arm, in rows
COSTS = {  # arms of eval.step_cost, from above, and the variant whose colour they take
    "TRL β>0": None,
    "TRL β=0": None,
    "plain packed": "plain",
    "A packed": "A",
    "B packed": "B",
    "C packed": "C",
}
COST_BASE = "A packed"
SPANS = 10  # of the longest runs; a curve is a running mean over one of them


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
    main = next((one for one in matrix.blocks if one.name == block), None)
    if main is None or not main.references:
        return None
    shown = [one for one in differences if (one.block, one.reference) == (block, main.references[0])]
    if not shown:
        return None
    look = styles(main, tables)
    figure = Figure(figsize=(11, 8.2), layout="constrained")
    long = longest(matrix, tables, main)
    grid = figure.add_gridspec(2, 2)
    _performance(figure.add_subplot(grid[0, 0]), main, shown, look)
    lengths = grid[0, 1].subgridspec(max(1, len(long)), 1).subplots(sharex=True, squeeze=False)
    _length(list(lengths[:, 0]), long, tables, differences)
    _stability(figure.add_subplot(grid[1, 0]), matrix, main, scores, look)
    _cost(figure.add_subplot(grid[1, 1]), seconds)
    footnote(figure, "Bars: 95 % intervals.", MARKED, OBJECTIVE)
    return figure


def _empty(axes: Axes, says: str) -> None:
    axes.text(0.5, 0.5, says, ha="center", va="center", transform=axes.transAxes)
    axes.set_axis_off()


def _performance(axes: Axes, block: Block, shown: list[Difference], look: dict[str, dict]) -> None:
    reference = block.references[0]
    arms = [arm for arm in block.arms if any(one.arm == arm for one in shown)]
    families = [name for name in block.families if any(one.family == name for one in shown)]
    axes.axvline(0, color="#999999", linewidth=0.8)
    for one in shown:
        value, low, high = one.contrast.estimate
        number = families.index(one.family)
        place = len(arms) - arms.index(one.arm) + SHIFT * ((len(families) - 1) / 2 - number)
        mark, colour = MARKS[number % len(MARKS)], look[one.arm]["color"]
        axes.plot(value, place, mark, color=colour, markersize=5, zorder=3, **marking(one))
        if not math.isnan(low):
            axes.plot([low, high], [place, place], color=colour, linewidth=1.2)
    axes.set_yticks([len(arms) - place for place in range(len(arms))], arms)
    for number, family in enumerate(families):
        pairs = max(one.pairs for one in shown if one.family == family)
        label = f"{family}, {pairs} pair{'s' * (pairs > 1)}"
        axes.plot([], [], MARKS[number % len(MARKS)], color="#555555", label=label)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, frameon=False)
    axes.set_title(f"Performance: held-out pass@1 less {reference}'s", fontsize=10)
    axes.set_xlabel("difference of pass@1, paired", fontsize=9)
    axes.tick_params(labelsize=8)


def longest(matrix: Matrix, tables: Tables, main: Block) -> dict[str, Block]:
    """By family: of the longest runs, longer than the main block's, the block with the most pairs compared."""
    steps = {block.name: max((run.key.steps for run in block.runs), default=0) for block in matrix.blocks}
    compared: dict[str, list[tuple[int, int, Block]]] = {}
    for block in matrix.blocks:
        for family in block.families if block.references and steps[block.name] > steps[main.name] else ():
            runs = {arm: set(finished(block, tables, family, arm)) for arm in block.arms}
            base = runs.pop(block.references[0], set())
            pairs = max((len(base & other) for other in runs.values()), default=0)
            if pairs:
                compared.setdefault(family, []).append((steps[block.name], pairs, block))
    best = {family: max(found, key=lambda one: one[:2]) for family, found in compared.items()}
    most = max((found[0] for found in best.values()), default=0)
    return {family: found[2] for family, found in best.items() if found[0] == most}


def _length(panels: list[Axes], shown: dict[str, Block], tables: Tables, differences: list[Difference]) -> None:
    panels[0].set_title("Length: reward in training, and pass@1 at the end (points)", fontsize=10)
    if not shown:
        _empty(panels[0], "no longer run yet")
        return
    for number, (axes, (family, block)) in enumerate(zip(panels, shown.items(), strict=True)):
        span, pairs = _length_of(axes, block, family, tables, differences)
        count = f"{family}, {pairs} pair{'s' * (pairs > 1)}"
        axes.text(0.01, 0.04, count, transform=axes.transAxes, fontsize=8)
        axes.set_ylabel(f"less {block.references[0]}, paired", fontsize=9)
        axes.tick_params(labelsize=8)
        if number == 0:
            axes.legend(fontsize=8 if len(panels) == 1 else 7, loc="upper left", ncols=2 if len(panels) == 1 else 3)
    panels[-1].set_xlabel(f"optimizer step; running means of {span}", fontsize=9)


def _length_of(
    axes: Axes, block: Block, family: str, tables: Tables, differences: list[Difference]
) -> tuple[int, int]:
    """Draws one family; the steps of a running mean, and the most pairs that an arm has."""
    reference, look = block.references[0], styles(block, tables)
    base, steps = finished(block, tables, family, reference), max(run.key.steps for run in block.runs)
    span, pairs = max(1, steps // SPANS), 0
    axes.axhline(0, color="#999999", linewidth=0.8)
    for number, (arm, style) in enumerate(look.items()):
        runs = {pair: key for pair, key in finished(block, tables, family, arm).items() if pair in base}
        if arm == reference or not runs:
            continue
        pairs = max(pairs, len(runs))
        curves = [reward(tables, key, span) - reward(tables, base[pair], span) for pair, key in runs.items()]
        curve = mean_with_band(curves)["mean"].loc[span:]
        axes.plot(curve.index, curve, label=arm, **style)
        for one in differences:
            if (one.block, one.family, one.arm, one.reference) == (block.name, family, arm, reference):
                place, (value, low, high) = steps * (1.03 + 0.03 * number), one.contrast.estimate
                axes.plot(place, value, "o", color=style["color"], markersize=5, zorder=3, **marking(one))
                if not math.isnan(low):
                    axes.plot([place, place], [low, high], color=style["color"], linewidth=1.2)
    axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= steps])
    return span, pairs


def over_rates(matrix: Matrix, main: Block, scores: list[Score]) -> dict[str, dict[float, Score]]:
    """
    By arm and learning rate: the scores of blocks that differ from the main one in nothing but the learning rate of
    their arms, in the first family that has several.
    """
    steps = {run.key.steps for run in main.runs}
    found: dict[str, dict[float, Score]] = {}
    for family in main.families:
        for block in matrix.blocks:
            if block.tunes or not block.suffix and block is not main or {run.key.steps for run in block.runs} != steps:
                continue
            for one in scores:
                if (one.block, one.family) == (block.name, family):
                    arm = one.arm.removesuffix(block.suffix)
                    rate = float(block.recipe(one.arm)["learning_rate"])
                    found.setdefault(arm, {})[rate] = one
        found = {arm: by_rate for arm, by_rate in found.items() if len(by_rate) > 1}
        if found:
            return found
    return {}


def _stability(axes: Axes, matrix: Matrix, main: Block, scores: list[Score], look: dict[str, dict]) -> None:
    arms = over_rates(matrix, main, scores)
    axes.set_title("Stability: pass@1 over the learning rate", fontsize=10)
    if not arms:
        _empty(axes, "no run at another rate yet")
        return
    rates = sorted({rate for by_rate in arms.values() for rate in by_rate})
    spread = 1.04  # between arms at one rate, so that their bars stand apart
    for number, (arm, by_rate) in enumerate(arms.items()):
        shift = spread ** (number - (len(arms) - 1) / 2)
        points = sorted(by_rate.items())
        axes.plot(
            [rate * shift for rate, _ in points], [one.pass1.value for _, one in points], "-", linewidth=1.2,
            color=look[arm]["color"], label=arm,
        )  # fmt: skip
        for rate, one in points:
            axes.plot(
                rate * shift, one.pass1.value, "o", color=look[arm]["color"], markersize=5, zorder=3, **marking(one)
            )
            if not math.isnan(one.pass1.low):
                ends = (max(0.0, one.pass1.low), min(1.0, one.pass1.high))
                axes.plot([rate * shift] * 2, ends, color=look[arm]["color"], linewidth=1.0, alpha=0.7)
    base = next(iter(next(iter(arms.values())).values())).bases["pass@1"].value
    axes.axhline(base, color=OTHER_COLOUR, linewidth=1.0, linestyle="--", label="base")
    axes.set_xscale("log")
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    (family,) = {one.family for by_rate in arms.values() for one in by_rate.values()}
    axes.set_xlabel(f"learning rate ({family})", fontsize=9)
    axes.set_ylim(0, None)
    axes.legend(fontsize=8)
    axes.tick_params(labelsize=8)


def _cost(axes: Axes, seconds: dict[str, list[float]]) -> None:
    axes.set_title("Cost: time of a whole step", fontsize=10)
    arms = [arm for arm in COSTS if arm in seconds]
    if COST_BASE not in arms:
        _empty(axes, "not measured")
        return
    for place, arm in enumerate(reversed(arms)):
        value, low, high = relative(seconds, arm, COST_BASE)
        name = COSTS[arm]
        axes.barh(place, value, color=VARIANTS[name].colour if name else OTHER_COLOUR)
        if not math.isnan(low):
            for width, colour in ((3.0, "#FFFFFF"), (1.2, "#000000")):  # seen on a black bar, too
                axes.plot([low, high], [place, place], color=colour, linewidth=width)
        end = value if math.isnan(high) else max(value, high)
        axes.text(end, place, f" {value:.0%}", va="center", fontsize=8)
    axes.set_yticks(range(len(arms)), reversed([arm.removesuffix(" packed") for arm in arms]))
    axes.set_xlim(0, 1.15 * axes.get_xlim()[1])
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("of A's step, at the lengths of GSM8K's answers", fontsize=8)
    axes.tick_params(labelsize=8)
