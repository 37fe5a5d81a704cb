"""Paired differences: of two runs in full, of all arms of one seed in a table."""

import math

from trl_prorl.errors import InputError
from trl_prorl.eval.analysis.compare import Comparison, arm_pairs, compare
from trl_prorl.eval.analysis.compare_arms import ArmComparison
from trl_prorl.eval.analysis.pairing import same_prompts
from trl_prorl.eval.analysis.statistics import NO_INTERVAL_NOTE, holm
from trl_prorl.eval.pages.cells import NOT_MEASURED, POWER, cell, interval_cell
from trl_prorl.eval.pages.document import Block, Bullets, Section
from trl_prorl.eval.pages.objective import objective_notes
from trl_prorl.eval.pages.table import Column, Table, table_of
from trl_prorl.eval.run_folder.run import Run


def comparison_table(comparisons: list[Comparison]) -> Table:
    """A row per k."""
    first, second = comparisons[0].first, comparisons[0].second
    columns = [
        Column("k", lambda row: str(row.k)),
        Column(first, lambda row: interval_cell(row.first_value, ".3f")),
        Column(second, lambda row: interval_cell(row.second_value, ".3f")),
        Column("difference", lambda row: interval_cell(row.difference, "+.3f")),
        Column(f"detectable difference ({POWER})", lambda row: cell(row.detectable, ".3f")),
    ]
    notes = [
        "Trained models, [95 % bootstrap over prompts], differences paired by prompt. A true difference of the last "
        "column is found with 80 % power, a smaller one less often."
    ]
    return table_of(f"pass@k, {first} less {second}", columns, comparisons, notes)


ARM_COLUMNS = [
    Column("arms", lambda row: f"{row.first} − {row.second}"),
    Column("k", lambda row: str(row.k)),
    Column("seeds in common", lambda row: str(row.seeds)),
    Column("first", lambda row: f"{row.first_value:.3f}"),
    Column("second", lambda row: f"{row.second_value:.3f}"),
    Column("difference [95 %]", lambda row: interval_cell(row.difference, "+.3f")),
    Column(f"detectable difference ({POWER})", lambda row: cell(row.detectable, ".3f")),
    Column("p (Holm)", lambda row: f"{row.adjusted:.2g}"),
]


def arms_table(comparisons: list[ArmComparison]) -> Table:
    """A row per pair of arms and k."""
    notes = [
        "pass@k of trained models, mean over seeds; runs are paired by seed where both arms have it, and by prompt. "
        "The interval covers prompts and, of several runs, seeds. p: exact McNemar of one run on each side, else the "
        "larger of t-tests over seeds and over prompts; Holm over the pairs of a k."
    ]
    return table_of("Arms, pair by pair", ARM_COLUMNS, comparisons, notes)


def comparison_statements(comparisons: list[Comparison]) -> list[str]:
    """What the differences say, the counts behind them once, and what the pair leaves open."""
    lines = []
    for each in comparisons:
        if each.differ:
            body = f"`{each.first if each.difference.value > 0 else each.second}` is higher."
        elif each.better == each.worse == 0:
            body = "no difference at any prompt."
        elif math.isnan(each.difference.low):
            body = NO_INTERVAL_NOTE
        else:
            body = f"no difference found; detectable difference ({POWER}): {each.detectable:.3f}."
        difference = interval_cell(each.difference, "+.3f")
        lines.append(f"pass@{each.k}: `{each.first}` less `{each.second}` {difference}: {body}")
    each = comparisons[0]
    lines.append(
        f"Of {each.prompts} prompts `{each.first}` is right more often at {each.better}, less often at {each.worse}, "
        f"equally often at {each.equal} ({each.n} samples each)."
    )
    lines.append(
        f"Exact McNemar on {each.paired_on}: only `{each.first}` right at {each.paired.first_only}, only "
        f"`{each.second}` at {each.paired.second_only}, p = {each.paired.p_value:.2g}."
    )
    return lines + each.notes


def _side_columns(place: int) -> list[Column]:
    """The columns of one k of a pair: of its first k, or of its last."""

    def difference(row):
        return interval_cell(row[0][place].difference, "+.3f")

    def found(row):
        return NOT_MEASURED if row[0][place].differ else cell(row[0][place].detectable, ".3f")

    return [
        Column("k", lambda row: str(row[0][place].k)),
        Column("difference in pass@k [95 %]", difference),
        Column(f"detectable difference ({POWER})", found),
    ]


PAIR_COLUMNS = [
    Column("pair", lambda row: f"{row[0][0].first} − {row[0][0].second}"),
    *_side_columns(0),
    *_side_columns(-1),
    Column("right in one alone", lambda row: f"{row[0][0].paired.first_only} : {row[0][0].paired.second_only}"),
    Column("p (Holm)", lambda row: f"{row[1]:.2g}"),
]


def pairs_blocks(runs: list[Run]) -> list[Block]:
    """Paired differences between arms of one seed at the smallest and the largest common k."""
    found, lines = [], []
    for first, second in arm_pairs(runs):
        common = set(first.passk["k"]) & set(second.passk["k"])
        if not same_prompts(first, second) or not common:
            lines.append(f"`{first.name}` and `{second.name}` were not evaluated on the same prompts in the same way.")
            continue
        try:
            found.append([compare(first, second, k) for k in sorted({min(common), max(common)})])
        except InputError as error:
            lines.append(f"Not compared: {str(error).rstrip('.')}.")
    if not found:
        return [Bullets(lines)] if lines else []
    adjusted = holm([by_k[0].paired.p_value for by_k in found])
    rows = list(zip(found, adjusted, strict=True))
    on = " or ".join(sorted({by_k[0].paired_on for by_k in found}))
    notes = [
        "Trained models of one training seed on the same prompts, every arm against the control and against A. Where "
        "the interval covers 0, a true difference of the next column is found with 80 % power, a smaller one less "
        f"often. Right in one alone: prompts, by {on}; p: exact McNemar, Holm over the table. One run on each "
        "side: nothing here covers the variation between training seeds."
    ]
    table = table_of("Arms of the same seed, paired by prompt", PAIR_COLUMNS, rows, notes + objective_notes(runs))
    return [table, *([Bullets(lines)] if lines else [])]


def sections(runs: list[Run]) -> list[Section]:
    blocks = pairs_blocks(runs)
    return [Section("Arms of the same seed, paired by prompt", blocks)] if blocks else []
