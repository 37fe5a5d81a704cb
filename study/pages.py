"""`make study-figures`: pictures and `docs/study/findings.md`, from the tables alone."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from eval.analysis.statistics import Estimate
from eval.pages.table import Table
from study.cost import COST_BASE, COSTS, relative, rounds
from study.cost import FILE as COST_FILE
from study.differences import ELSE, MANY, MATTERS, SHARES, Difference, compared, differences, over_families, shares
from study.hierarchical import coverage
from study.matrix import Block, Matrix
from study.pictures import forest, learning_curves, overview, save, styles
from study.scores import BASE, CO_PRIMARY, OUTCOMES, Score, outcomes, scores
from study.tables import FOLDER, Tables
from study.training import aggregates, training
from study.tuned import STILL, TIE, Choice, choices
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
    folder, written, parts = root / FOLDER, [], [HEAD]
    found = [(block, scores(block, tables), differences(block, tables)) for block in matrix.blocks if not block.tunes]
    found = [one for one in found if one[1]]
    if not found:
        raise InputError(f"{FOLDER}: none of these runs is finished; make study trains them")
    seconds, main = rounds(root), found[0][0]

    def picture(figure, name: str, says: str) -> None:
        if figure is not None:
            save(figure, folder / name)
            written.append(folder / name)
            parts.append(f"\n![{says}]({name})\n")

    every = [[one for block in found for one in block[place]] for place in (1, 2)]
    whole = overview(matrix, tables, *every, seconds, main.name)
    picture(whole, OVERVIEW, "performance, length, stability and cost")
    for block, of_arms, held in found:
        state = "Co-primary" if block.name in CO_PRIMARY else "Exploratory, whatever the hypothesis"
        parts.append(f"\n## {block.name}\n\n{state}, by the [protocol](protocol.md).\n")
        picture(learning_curves(block, tables), f"{block.name}_curves.png", f"{block.name}: curves")
        picture(forest(block, held, styles(block, tables)), f"{block.name}_forest.png", f"{block.name}: forest")
        made = _tables(block, tables, of_arms, held)
        parts += [f"\n{table.title}\n\n{table.to_markdown()}\n" for table in made]
    parts.append(f"\n## The study's own cost, and its intervals\n\n{_checks(main, tables)}\n")
    if COST_BASE in seconds:
        parts.append(f"\n## Cost of a step\n\n{_cost(seconds).to_markdown()}\n")
    if made := choices(matrix, tables):
        parts.append(f"\n## Values chosen on validation\n\n{_choices(made).to_markdown()}\n")
    with replaced(folder / PAGE) as aside:
        aside.write_text("".join(parts))
    return [*written, folder / PAGE]


def _checks(block: Block, tables: Tables) -> str:
    """Two sentences: what all runs took, and how often the intervals of a block cover."""
    said = f"{len(tables.runs)} runs took {tables.runs['seconds'].sum() / 3600:.1f} core-hours, evaluation included. "
    said += "Tokens/s is wall time beside other jobs: it does not compare arms."
    values = outcomes(block, tables)
    arms = [pair for *pair, hypothesis in compared(block) if hypothesis != ELSE]
    both = [values[family][pair].dropna() for pair in arms for family in block.families]
    if found := [coverage(np.stack(one.iloc[:, 0] - one.iloc[:, 1])) for one in both if len(one) > 1]:
        ends = [f"{min(each):.1%} to {max(each):.1%}" for each in zip(*found, strict=True)]
        said += f" In simulated studies with the variances of {block.name}'s registered differences, the registered "
        said += f"95 % intervals cover the truth {ends[0]} of the time, those of the bases alone {ends[1]}."
    return said


def _cost(seconds: dict[str, list[float]]) -> Table:
    arms = [arm for arm in COSTS if arm in seconds]
    against = [arm for arm in (COST_BASE, "C packed", "plain packed") if arm in seconds]
    note = (
        f"Medians of {len(seconds[COST_BASE])} paired rounds with the interval of the sign test, from `{COST_FILE}` "
        "(docs/performance.md says how it is measured). All runs of the study train “packed”."
    )
    rows = [[arm, *(_percent(relative(seconds, arm, other)) for other in against)] for arm in arms]
    return Table("Time of a whole step", ["arm", *(f"of {arm}'s" for arm in against)], rows, notes=[note])


def _choices(made: list[Choice]) -> Table:
    values = list(dict.fromkeys(value for choice in made for value in choice.scores))
    rows = [
        [
            *(choice.block, choice.family, choice.key, choice.by),
            *(f"{choice.scores[value]:.3f}" if value in choice.scores else "" for value in values),
            f"{choice.value:g}",
        ]
        for choice in made
    ]
    title = f"Mean validation score by value, of the score that chose; chosen is the largest within {TIE} of the best."
    if any(choice.by == "gain" for choice in made):
        title += f" By gain over base: the smallest of at most {STILL}, else the largest."
    return Table(title, ["block", "family", "key", "score", *(f"{value:g}" for value in values), "chosen"], rows)


def _tables(block: Block, tables: Tables, found: list[Score], held: list[Difference]) -> Iterator[Table]:
    yield _scores(found)
    yield _training(block, tables)
    if held:
        yield _table(
            "Differences of pass@1, paired by base seed, training seed and prompt:",
            f"hypothesis, {COMPARED}, difference, {P_VALUES}, smallest, after Holm, {WITHIN}, ",
            (
                [
                    *(one.hypothesis, *_difference(one), _number(one.contrast.smallest())),
                    *(_number(one.contrast.smallest(one.tests)), _p_value(one.contrast.equivalence(MATTERS))),
                    one.verdict,
                ]
                for one in held
            ),
        )
        beside = zip(*(differences(block, tables, OUTCOMES[name]) for name in BESIDE), strict=True)
        yield _table(
            "Differences of greedy decoding and pass@8. All are exploratory: the hypotheses are about pass@1.",
            ", ".join([COMPARED, *(f"{name}, {P_VALUES}" for name in BESIDE)]),
            ([*_difference(greedy), *_difference(broad)[4:]] for greedy, broad in beside),
        )
    if pooled := over_families(block, tables):
        beside = zip(pooled, *(over_families(block, tables, OUTCOMES[name]) for name in BESIDE), strict=True)
        yield _table(
            "Means over families of equal weight. All are exploratory: the protocol does not name them. p-values are "
            "not adjusted. The pairs are the units, because the families' bases of one number begin at the same "
            "random weights and are trained with the same seed. “Families differ” is the F test that the difference "
            "is the same in all (families × bases). Greedy and pass@8 have the interval of the bases alone.",
            "arm, less, pairs, pass@1, bases alone, p, p of bases, smallest, "
            f"{WITHIN}, , families differ (p), {', '.join(BESIDE)}",
            (
                [
                    *(one.arm, one.reference, str(one.pairs), *_both(one), _p_value(one.contrast.p_value)),
                    *(_p_value(one.alone.p_value), _number(one.contrast.smallest())),
                    *(_p_value(one.contrast.equivalence(MATTERS)), one.verdict, _p_value(one.families_differ)),
                    *(_estimate(each.alone.estimate, "+") for each in more),
                ]
                for one, *more in beside
            ),
        )
    if block.references:
        cells = aggregates(block, tables)
        yield _table(
            f"All cells (family and pair) that every arm has; above {block.references[0]} in how many:",
            "arm, mean, interquartile mean, above (a tie: half), probability of improvement",
            (
                [row.Index, *(f"{one:.3f}" for one in (row.mean, row.IQM)), f"{row.above:g} of {row.cells}",
                 f"{row.above / row.cells:.2f}"]
                for row in cells.itertuples()
            ),
        )  # fmt: skip
    if kept := shares(block, tables):
        yield _table(
            "What B, a different objective, keeps of another arm's score:",
            f"family, B, by, pairs, of, share, {', '.join(f'≥ {share:.0%}' for share in SHARES)}",
            (
                [
                    *(one.family, one.arm, one.reference, str(one.pairs), one.of),
                    *("n/a" if one.ratio is None else _percent(one.ratio), *map(one.verdict, SHARES)),
                ]
                for one in kept
            ),
        )


def _table(title: str, heads: str, rows: Iterable[list[str]]) -> Table:
    return Table(title, heads.split(", "), list(rows))


def _scores(found: list[Score]) -> Table:
    rows = []
    for place, one in enumerate(found):
        if place == 0 or found[place - 1].family != one.family:
            rows.append([one.family, BASE, str(one.pairs), *map(_estimate, one.bases.values()), *[""] * 9])
        rows.append(
            [
                *(one.family, one.arm, str(one.pairs), *map(_estimate, one.values.values())),
                *(_estimate(each, sign="+") for each in one.gains.values()),
                *(_number(one.drift), f"{one.collapsed} of {one.pairs}"),
                "–".join(f"{100 * share:.0f}" for share in (min(one.kept), max(one.kept))) + "%",
                *(f"{one.ref_calls:.0f}", _range(one.resets), _range(one.apart)),
            ]
        )
    heads = ["family, arm, pairs", *OUTCOMES, *(f"{name} less base" for name in OUTCOMES)]
    heads.append("drift, collapsed, end by best, ref. calls, resets, steps apart")
    return _table("Scores after the last step:", ", ".join(heads), rows)


def _training(block: Block, tables: Tables) -> Table:
    ways = {"family": "", "arm": "", "kl_ref": ".4f", "kl_old": ".4f", "clipped": ".2%", "size of updates": "+.0%"}
    ways |= {"of": "", "gain after clamp": "+.3f", "reconvergence": "g", "KL spikes": ".1f", "entropy spikes": ".1f"}
    ways |= {"tokens/s": ".0f"}
    rows = (
        ["" if row[name] != row[name] else f"{row[name]:{way}}".replace("-", "−") for name, way in ways.items()]
        for row in training(block, tables).to_dict("records")
    )
    title = " ".join(training.__doc__.partition(":")[2].split())
    return _table(f"Training: {title}", ", ".join(ways), rows)


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
    value, low, high = estimate
    ends = "" if low != low else f" [{low:{sign}.3f}, {high:{sign}.3f}]"
    return f"{value:{sign}.3f}{ends}".replace("-", "−")


def _range(numbers: Sequence[float]) -> str:
    """`5`, or `11–12` where they differ."""
    return "–".join(f"{end:g}" for end in sorted({min(numbers), max(numbers)})) if numbers else ""


def _percent(estimate: Estimate) -> str:
    value, low, high = estimate
    return f"{value:.0%}" + ("" if low != low else f" [{low:.0%}, {high:.0%}]".replace("inf%", "∞"))
