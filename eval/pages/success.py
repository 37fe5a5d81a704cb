"""The success rule in words and as a table."""

import math

from trl_prorl.eval.analysis.statistics import Estimate
from trl_prorl.eval.analysis.success import Comparison, comparisons, verdict
from trl_prorl.eval.pages.cells import NOT_MEASURED, interval_cell, percent, share_cell
from trl_prorl.eval.pages.document import Bullets, Section, Text
from trl_prorl.eval.pages.table import Column, Table, table_of
from trl_prorl.eval.run_folder.run import Run
from trl_prorl.variants import DIFFERENT_OBJECTIVE


SHARES = (0.8, 0.9)
MOST_TOLD = 6  # comparisons in full sentences


def _unbounded(ratio: Estimate | None) -> bool:
    """Whether the runs exclude no ratio at all."""
    return ratio is not None and (ratio.low, ratio.high) == (0.0, math.inf)


def _share_text(share: Estimate | None) -> str:
    if share is None:
        return NOT_MEASURED
    return percent(share.value) if _unbounded(share) else share_cell(share)


def _share_interval(comparison: Comparison) -> str:
    """What the interval of a share covers, in brackets; for one pair, why there is none."""
    if comparison.share is None:
        return ""
    if math.isnan(comparison.share.low):
        return " (too few prompts for an interval)"
    if not _unbounded(comparison.share):
        return " (95 %, over training runs and prompts)"
    over_prompts = comparison.pairs[0].share if len(comparison.pairs) == 1 else None
    known = f"; over prompts alone {_share_text(over_prompts)}" if over_prompts else ""
    return f" (too few runs for an interval{known})"


def _step_time_text(step_time: Estimate | None) -> str:
    if step_time is None:
        return NOT_MEASURED
    return f"{step_time.value:.2f}" if _unbounded(step_time) else interval_cell(step_time, ".2f")


def _in_short(comparison: Comparison) -> str:
    verdicts = ", ".join(f"{100 * share:.0f} % **{verdict(comparison, share)[2]}**" for share in SHARES)
    return (
        f"{comparison.b} against {comparison.a}: {_share_text(comparison.share)} of the score, step time "
        f"{_step_time_text(comparison.step_time)}: {verdicts}."
    )


def success_statements(found: list[Comparison]) -> list[str]:
    """The verdicts in words, a line per comparison, and what speaks against comparing step times; many in short."""
    if len(found) > MOST_TOLD:
        warnings = dict.fromkeys(warning for comparison in found for warning in comparison.warnings)
        return [*map(_in_short, found), *(f"Careful: {warning}" for warning in warnings), DIFFERENT_OBJECTIVE]
    lines = []
    for comparison in found:
        line = (
            f"{comparison.b} against {comparison.a}: B has {_share_text(comparison.share)} of A's held-out pass@1"
            f"{_share_interval(comparison)}, and its mean step takes {_step_time_text(comparison.step_time)} times A's"
            f"{' (too few runs for an interval)' if _unbounded(comparison.step_time) else ''}."
        )
        for share in SHARES:
            score, cost, rule = verdict(comparison, share)
            line += (
                f" At least {100 * share:.0f} % at a lower step cost: **{rule}** (score {score}, step cost {cost})."
            )
        lines.append(line)
        lines += [f"Careful: {warning}" for warning in comparison.warnings]
    return [*lines, DIFFERENT_OBJECTIVE] if lines else []


def success_table(found: list[Comparison]) -> Table:
    """A row per pair of runs and one over all pairs of a comparison."""
    columns = [
        Column("B", lambda row: row[0]),
        Column("A", lambda row: row[1]),
        Column("seed", lambda row: row[2]),
        Column("B's pass@1 as a share of A's [95 %]", lambda row: _share_text(row[3])),
        Column("step time, B / A [95 %]", lambda row: _step_time_text(row[4])),
    ]
    rows = []
    for comparison in found:
        for pair in comparison.pairs:
            rows.append(
                [
                    pair.b.name,
                    pair.a.name,
                    NOT_MEASURED if pair.b.repetition != pair.a.repetition else str(pair.b.seed),
                    pair.share,
                    pair.step_time and Estimate(pair.step_time, 0.0, math.inf),  # of one pair, no interval
                ]
            )
        rows.append([f"**{comparison.b}**", f"**{comparison.a}**", "all", comparison.share, comparison.step_time])
    notes = [
        "Met or not met only where the whole interval is on one side. Intervals are 95 %: of a single pair over "
        "prompts (paired bootstrap), which says nothing of other seeds and decides nothing; over all pairs of "
        "training runs, paired where every seed stands once on each side: for the score the hull of Fieller's and of "
        "a bootstrap over prompts, for the ratio of mean step times Student's t of log ratios.",
        DIFFERENT_OBJECTIVE,
    ]
    return table_of("Success rule: B against A", columns, rows, notes)


def sections(runs: list[Run]) -> list[Section]:
    found = comparisons(runs)
    if not found:
        return []
    rule = Text("The rule: B keeps 80 to 90 % of A's held-out score at a lower step cost.")
    table = success_table(found)
    return [Section(table.title, [rule, Bullets(success_statements(found)), table])]
