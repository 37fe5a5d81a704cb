"""`make study-figures`: pictures and `docs/study/findings.md`, from the tables alone."""

from collections.abc import Sequence
from pathlib import Path

from eval.analysis.statistics import Estimate
from eval.pages.table import Table
from study.cost import FILE as COST_FILE
from study.cost import relative, rounds
from study.differences import differences, over_families
from study.figures import forest, learning_curves, save, styles
from study.matrix import Block, Matrix
from study.overview import COST_BASE, COSTS, overview
from study.scores import CO_PRIMARY, scores
from study.shares import SHARES, shares
from study.tables import FOLDER, Tables
from study.tuned import TIE, Choice, choices
from trl_prorl.errors import InputError
from trl_prorl.files import replaced
from trl_prorl.variants import DIFFERENT_OBJECTIVE


PAGE, OVERVIEW = "findings.md", "overview.png"
BROAD = 8  # k of the second pass@k: whether any of several answers is right
HEAD = (
    "# The study: what the tables say so far\n\n"
    "Written by `make study-figures` from the tables in this folder. Brackets are 95 % intervals that cover the base, "
    "the training seed and the held-out prompt. p-values are after Holm, within a block and a hypothesis, over the "
    "families that are there; a family that follows changes them. The last column of differences goes by the interval "
    "alone, before Holm. “Smallest” is the true difference that such an interval tells from 0 four times in five. "
    "“Bases alone” is the ordinary paired t-interval over the bases, which the protocol does not name: the registered "
    "one errs to the wide side where the bases agree. “End by best” is the training reward at the end by the run's "
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
    for block, found, compared in blocks.values():
        state = "Co-primary" if block.name in CO_PRIMARY else "Exploratory, whatever the hypothesis"
        parts.append(f"\n## {block.name}\n\n{state}, by the [protocol](protocol.md).\n")
        look = styles(block, tables)
        for name, figure in (("curves", learning_curves(block, tables)), ("forest", forest(block, compared, look))):
            if figure is not None:
                path = folder / f"{block.name}_{name}.png"
                save(figure, path)
                written.append(path)
                parts.append(f"\n![{block.name}: {name}]({path.name})\n")
        parts += [f"\n{table.title}\n\n{table.to_markdown()}\n" for table in _tables(block, tables, found, compared)]
    if COST_BASE in seconds:
        parts.append(f"\n## Cost of a step\n\n{_cost(seconds).to_markdown()}\n")
    if made := choices(matrix, tables):
        parts.append(f"\n## Values chosen on validation\n\n{_choices(made).to_markdown()}\n")
    with replaced(folder / PAGE) as aside:
        aside.write_text("".join([HEAD, *parts]))
    return [*written, folder / PAGE]


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
        f"Mean validation pass@1 by value; chosen is the largest within {TIE} of the best.",
        ["block", "family", "key", *(f"{value:g}" for value in values), "chosen"],
        [
            [
                *(choice.block, choice.family, choice.key),
                *(f"{choice.scores[value]:.3f}" if value in choice.scores else "" for value in values),
                f"{choice.value:g}",
            ]
            for choice in made
        ],
    )


def _tables(block: Block, tables: Tables, found, compared) -> list[Table]:
    made = [
        Table(
            "Scores after the last step:",
            [
                "family",
                "arm",
                "pairs",
                "pass@1",
                "pass@8",
                "greedy",
                "base pass@1",
                "less base",
                "drift",
                "collapsed",
                "end by best",
                "ref. calls",
                "resets",
                "steps apart",
            ],
            [
                [
                    *(one.family, one.arm, str(one.pairs)),
                    *(_estimate(each) for each in (one.pass1, one.pass8, one.greedy)),
                    f"{one.base:.3f}",
                    _estimate(one.gain, sign="+"),
                    "n/a" if one.drift is None else f"{one.drift:.3f}",
                    f"{one.collapsed} of {one.pairs}",
                    "–".join(f"{100 * share:.0f}" for share in one.kept) + "%",
                    f"{one.ref_calls:.0f}",
                    _range(one.resets),
                    "" if one.apart is None else _range(one.apart),
                ]
                for one in found
            ],
        )
    ]
    if compared:
        made.append(
            Table(
                "Differences of pass@1, paired by base seed, training seed and prompt:",
                [
                    *("hypothesis", "family", "arm", "less", "pairs", "difference", "p (Holm)", "smallest", ""),
                    *("bases alone", "p (Holm)"),
                ],
                [
                    [
                        *(one.hypothesis, one.family, one.arm, one.reference, str(one.pairs)),
                        _estimate(one.contrast.estimate, sign="+"),
                        *(_p_value(one.adjusted), _number(one.contrast.smallest), one.verdict),
                        *(_ends(one.alone.estimate, sign="+"), _p_value(one.adjusted_alone)),
                    ]
                    for one in compared
                ],
            )
        )
    if wide := differences(block, tables, BROAD):
        made.append(
            Table(
                f"Differences of pass@{BROAD}. All are exploratory, because the hypotheses are about pass@1:",
                ["family", "arm", "less", "pairs", "difference", "p (Holm)", "", "bases alone", "p (Holm)"],
                [
                    [
                        *(one.family, one.arm, one.reference, str(one.pairs)),
                        *(_estimate(one.contrast.estimate, sign="+"), _p_value(one.adjusted), one.verdict),
                        *(_ends(one.alone.estimate, sign="+"), _p_value(one.adjusted_alone)),
                    ]
                    for one in wide
                ],
            )
        )
    if pooled := over_families(block, tables):
        made.append(
            Table(
                "pass@1 as means over families of equal weight. This is exploratory, because the protocol does not "
                "name it; p-values are not adjusted. The pairs are the units, because the families' bases of one "
                "number begin at the same random weights and are trained with the same seed.",
                ["arm", "less", "families", "pairs", "difference", "p", "smallest", "", "bases alone", "p"],
                [
                    [
                        *(one.arm, one.reference, one.family, str(one.pairs)),
                        _estimate(one.contrast.estimate, sign="+"),
                        *(_p_value(one.contrast.p_value), _number(one.contrast.smallest), one.verdict),
                        *(_ends(one.alone.estimate, sign="+"), _p_value(one.alone.p_value)),
                    ]
                    for one in pooled
                ],
            )
        )
    if kept := shares(block, tables):
        heads = [f"≥ {share:.0%}" for share in SHARES]
        made.append(
            Table(
                "What B, a different objective, keeps of another arm's score:",
                ["family", "B", "by", "pairs", "of", "share", *heads],
                [
                    [
                        *(one.family, one.arm, one.reference, str(one.pairs), one.of),
                        "n/a" if one.ratio is None else _percent(one.ratio),
                        *(one.verdict(share) for share in SHARES),
                    ]
                    for one in kept
                ],
            )
        )
    return made


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
