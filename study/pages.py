"""`make study-figures`: pictures and `docs/study/findings.md`, from the tables alone."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from eval.analysis.statistics import Estimate
from eval.pages.table import Table
from study.cost import FILE as COST_FILE
from study.cost import relative, rounds
from study.differences import ELSE, MANY, MATTERS, Difference, compared, differences, over_families
from study.figures import forest, learning_curves, save, styles
from study.hierarchical import coverage
from study.matrix import Block, Matrix
from study.overview import COST_BASE, COSTS, overview
from study.per_prompt import finished, of_runs
from study.scores import BASE, CO_PRIMARY, OUTCOMES, Score, scores
from study.shares import SHARES, shares
from study.tables import FOLDER, Tables
from study.training import aggregates, training
from study.tuned import TIE, Choice, choices
from trl_prorl.errors import InputError
from trl_prorl.files import replaced
from trl_prorl.variants import DIFFERENT_OBJECTIVE


PAGE, OVERVIEW = "findings.md", "overview.png"
COMPARED, P_VALUES = "family, arm, less, pairs", "bases alone, p (Holm), p of bases (Holm)"  # headings
WITHIN = f"p (within ±{MATTERS})"
BESIDE = ("greedy", "pass@8")  # of OUTCOMES, beside pass@1
HEAD = (
    "# The study: what the tables say so far\n\n"
    "Written by `make study-figures` from the tables in this folder. Brackets are 95 % intervals that cover the base, "
    "the training seed and the held-out prompt. p-values are after Holm, within a block and a hypothesis, over the "
    "families that are there; a family that follows changes them. The last column of differences goes by the interval "
    "alone, before Holm. “Smallest” is the true difference that such an interval tells from 0 four times in five, "
    "“after Holm” at the strictest level of the correction. “Bases alone” is the ordinary paired t-interval over the "
    "bases, which the protocol does not name: the registered one errs to the wide side where the bases agree. "
    f"“Equivalent”: not told apart, and within ±{MATTERS} by two one-sided t-tests at 5 % with the registered error, "
    "without a correction; the protocol has the margin, and not this test. Where a p-value lies between 0.04 and "
    f"0.06, there are {MANY:,} resamples, else 4,000. “End by best” is the training reward at the end by the run's "
    "best, of the run that kept least and of the one that kept most; below 50 % a run is called collapsed. "
    "“Ref. calls” leave out the forwards of a base anchor. “Steps apart” are the least and the most from one reset of "
    "a run to its next. "
    f"{DIFFERENT_OBJECTIVE}\n"
)


def write_pages(root: Path, matrix: Matrix, tables: Tables) -> list[Path]:
    """
    Write the pictures and the page.

    Raises:
        InputError: No run of the selection is in the tables.
    """
    folder, written, parts = root / FOLDER, [], []
    blocks = {block.name: (block, scores(block, tables)) for block in matrix.blocks if not block.tunes}
    blocks = {name: (block, found, differences(block, tables)) for name, (block, found) in blocks.items() if found}
    if not blocks:
        raise InputError(f"{FOLDER}: none of these runs is finished; make study trains them")
    seconds = rounds(root)
    every = [[one for parts in blocks.values() for one in parts[place]] for place in (1, 2)]
    main, *_ = next(iter(blocks.values()))
    whole = overview(matrix, tables, *every, seconds, main.name)
    if whole is not None:
        save(whole, folder / OVERVIEW)
        written.append(folder / OVERVIEW)
        parts.append(f"\n![performance, length, stability and cost]({OVERVIEW})\n")
    for block, found, held in blocks.values():
        state = "Co-primary" if block.name in CO_PRIMARY else "Exploratory, whatever the hypothesis"
        parts.append(f"\n## {block.name}\n\n{state}, by the [protocol](protocol.md).\n")
        look = styles(block, tables)
        for name, figure in (("curves", learning_curves(block, tables)), ("forest", forest(block, held, look))):
            if figure is not None:
                path = folder / f"{block.name}_{name}.png"
                save(figure, path)
                written.append(path)
                parts.append(f"\n![{block.name}: {name}]({path.name})\n")
        parts += [f"\n{table.title}\n\n{table.to_markdown()}\n" for table in _tables(block, tables, found, held)]
    parts.append(f"\n## The study's own cost, and its intervals\n\n{_checks(main, tables)}\n")
    if COST_BASE in seconds:
        parts.append(f"\n## Cost of a step\n\n{_cost(seconds).to_markdown()}\n")
    if made := choices(matrix, tables):
        parts.append(f"\n## Values chosen on validation\n\n{_choices(made).to_markdown()}\n")
    with replaced(folder / PAGE) as aside:
        aside.write_text("".join([HEAD, *parts]))
    return [*written, folder / PAGE]


def _checks(block: Block, tables: Tables) -> str:
    """Two sentences: what all runs took, and how often the intervals of a block cover."""
    hours = sum(row["seconds"] for row in tables.runs.values()) / 3600
    said = f"{len(tables.runs)} runs took {hours:.1f} core-hours, evaluation included. Tokens/s is wall time beside "
    said += "other jobs: it does not compare arms."
    places = [
        (*pair, family) for *pair, hypothesis in compared(block) if hypothesis != ELSE for family in block.families
    ]
    runs = [[of_runs(tables, finished(block, tables, family, arm)) for arm in pair] for *pair, family in places]
    less = [np.array([one[pair] - other[pair] for pair in sorted(one.keys() & other.keys())]) for one, other in runs]
    if found := [coverage(values) for values in less if len(values) > 1]:
        ends = [f"{min(each):.1%} to {max(each):.1%}" for each in zip(*found, strict=True)]
        said += f" In simulated studies with the variances of {block.name}'s registered differences, the registered "
        said += f"95 % intervals cover the truth {ends[0]} of the time, those of the bases alone {ends[1]}."
    return said


def _cost(seconds: dict[str, list[float]]) -> Table:
    arms = [arm for arm in COSTS if arm in seconds]
    against = [arm for arm in (COST_BASE, "C packed", "plain packed") if arm in seconds]
    return Table(
        "Time of a whole step",
        ["arm", *(f"of {arm}'s" for arm in against)],
        [[arm, *(_percent(relative(seconds, arm, other)) for other in against)] for arm in arms],
        notes=[
            f"Medians of {len(seconds[COST_BASE])} paired rounds with the interval of the sign test, from "
            f"`{COST_FILE}` (docs/performance.md says how it is measured). All runs of the study train “packed”."
        ],
    )


def _choices(made: list[Choice]) -> Table:
    values = list(dict.fromkeys(value for choice in made for value in choice.scores))
    return Table(
        f"Mean validation score by value, of the score that chose; chosen is the largest within {TIE} of the best.",
        ["block", "family", "key", "score", *(f"{value:g}" for value in values), "chosen"],
        [
            [
                *(choice.block, choice.family, choice.key, choice.by),
                *(f"{choice.scores[value]:.3f}" if value in choice.scores else "" for value in values),
                f"{choice.value:g}",
            ]
            for choice in made
        ],
    )


def _tables(block: Block, tables: Tables, found, held) -> list[Table]:
    made = [_scores(found), _training(block, tables)]
    if held:
        rows = [
            [
                *(one.hypothesis, *_difference(one), _number(one.contrast.smallest())),
                *(_number(one.contrast.smallest(one.tests)), _p_value(one.contrast.equivalence(MATTERS)), one.verdict),
            ]
            for one in held
        ]
        heads = f"hypothesis, {COMPARED}, difference, {P_VALUES}, smallest, after Holm, {WITHIN}, ".split(", ")
        made.append(Table("Differences of pass@1, paired by base seed, training seed and prompt:", heads, rows))
        beside = zip(*(differences(block, tables, OUTCOMES[name]) for name in BESIDE), strict=True)
        title = "Differences of greedy decoding and pass@8. All are exploratory: the hypotheses are about pass@1."
        rows = [[*_difference(greedy), *_difference(broad)[4:]] for greedy, broad in beside]
        heads = [COMPARED, *(f"{name}, {P_VALUES}" for name in BESIDE)]
        made.append(Table(title, ", ".join(heads).split(", "), rows))
    if pooled := over_families(block, tables):
        beside = zip(pooled, *(over_families(block, tables, OUTCOMES[name]) for name in BESIDE), strict=True)
        rows = [
            [
                *(one.arm, one.reference, str(one.pairs), *_both(one)),
                *(_p_value(one.contrast.p_value), _p_value(one.alone.p_value), _number(one.contrast.smallest())),
                *(_p_value(one.contrast.equivalence(MATTERS)), one.verdict, _p_value(one.families_differ)),
                *(_estimate(each.alone.estimate, "+") for each in more),
            ]
            for one, *more in beside
        ]
        title = (
            "Means over families of equal weight. All are exploratory: the protocol does not name them. p-values "
            "are not adjusted. The pairs are the units, because the families' bases of one number begin at the same "
            "random weights and are trained with the same seed. “Families differ” is the F test that the difference "
            "is the same in all (families × bases). Greedy and pass@8 have the interval of the bases alone."
        )
        heads = f"arm, less, pairs, pass@1, bases alone, p, p of bases, smallest, {WITHIN}, , families differ (p)"
        made.append(Table(title, [*heads.split(", "), *BESIDE], rows))
    if block.references:
        cells = aggregates(block, tables)
        title = f"All cells (family and pair) that every arm has; above {block.references[0]} in how many:"
        rows = [
            [arm, f"{row.mean:.3f}", f"{row.IQM:.3f}", f"{row.above:g} of {row.cells}", f"{row.above / row.cells:.2f}"]
            for arm, row in zip(cells.index, cells.itertuples(), strict=True)
        ]
        heads = "arm, mean, interquartile mean, above (a tie: half), probability of improvement".split(", ")
        made.append(Table(title, heads, rows))
    if kept := shares(block, tables):
        rows = [
            [
                *(one.family, one.arm, one.reference, str(one.pairs), one.of),
                "n/a" if one.ratio is None else _percent(one.ratio),
                *(one.verdict(share) for share in SHARES),
            ]
            for one in kept
        ]
        heads = ["family", "B", "by", "pairs", "of", "share", *(f"≥ {share:.0%}" for share in SHARES)]
        made.append(Table("What B, a different objective, keeps of another arm's score:", heads, rows))
    return made


def _scores(found: list[Score]) -> Table:
    rows = []
    for place, one in enumerate(found):
        if place == 0 or found[place - 1].family != one.family:
            rows.append([one.family, BASE, str(one.pairs), *map(_estimate, one.bases.values()), *[""] * 9])
        rows.append(
            [
                *(one.family, one.arm, str(one.pairs), *map(_estimate, one.values.values())),
                *(_estimate(each, sign="+") for each in one.gains.values()),
                "n/a" if one.drift is None else f"{one.drift:.3f}",
                f"{one.collapsed} of {one.pairs}",
                "–".join(f"{100 * share:.0f}" for share in one.kept) + "%",
                *(f"{one.ref_calls:.0f}", _range(one.resets), "" if one.apart is None else _range(one.apart)),
            ]
        )
    heads = "drift, collapsed, end by best, ref. calls, resets, steps apart".split(", ")
    heads = ["family", "arm", "pairs", *OUTCOMES, *(f"{name} less base" for name in OUTCOMES), *heads]
    return Table("Scores after the last step:", heads, rows)


def _training(block: Block, tables: Tables) -> Table:
    made = training(block, tables)
    ways = {"family": "", "arm": "", "kl_ref": ".4f", "kl_old": ".4f", "clipped": ".2%", "size of updates": "+.0%"}
    ways |= {"of": "", "gain after clamp": "+.3f", "reconvergence": "g", "KL spikes": ".1f", "entropy spikes": ".1f"}
    ways |= {"tokens/s": ".0f"}
    cells = [
        made[name].map(lambda value, way=way: "" if value != value else f"{value:{way}}".replace("-", "−"))
        for name, way in ways.items()
    ]
    title = " ".join(training.__doc__.partition(":")[2].split())
    return Table(f"Training: {title}", list(ways), list(map(list, zip(*cells, strict=True))))


def _difference(one: Difference) -> list[str]:
    p_values = (_p_value(one.adjusted), _p_value(one.adjusted_alone))
    return [one.family, one.arm, one.reference, str(one.pairs), *_both(one), *p_values]


def _both(one: Difference) -> tuple[str, str]:
    return _estimate(one.contrast.estimate, sign="+"), _estimate(one.alone.estimate, sign="+")


def _number(value: float) -> str:
    return "n/a" if value != value else f"{value:.3f}"


def _p_value(value: float) -> str:
    return "< 0.001" if value < 0.001 else _number(value)


def _estimate(estimate: Estimate, sign: str = "") -> str:
    ends = "" if estimate.low != estimate.low else f" {_ends(estimate, sign)}"
    return f"{estimate.value:{sign}.3f}{ends}".replace("-", "−")


def _range(numbers: Sequence[float]) -> str:
    """`5`, or `11–12` where they differ."""
    ends = sorted({min(numbers), max(numbers)})
    return "–".join(f"{end:g}" for end in ends)


def _ends(estimate: Estimate, sign: str = "") -> str:
    if estimate.low != estimate.low:
        return "n/a"
    return f"[{estimate.low:{sign}.3f}, {estimate.high:{sign}.3f}]".replace("-", "−")


def _percent(estimate: Estimate) -> str:
    value, low, high = estimate
    return f"{value:.0%}" + ("" if low != low else f" [{low:.0%}, {high:.0%}]".replace("inf%", "∞"))
