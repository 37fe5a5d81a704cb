"""Who is ahead: the verdict, variants pair by pair; two runs in full."""

import math

from rich.table import Table as RichTable

from trl_prorl.eval.analysis.compare import (
    Comparison,
    Verdict,
    compare_with_references,
    verdicts,
)
from trl_prorl.eval.analysis.frame import Frame, ReportArm
from trl_prorl.eval.analysis.statistics import NO_INTERVAL_NOTE
from trl_prorl.eval.pages.document import Bullets, Picture, Section, Text
from trl_prorl.eval.pages.plotting import OTHER_COLOUR, Panel, colour_of, row_labels
from trl_prorl.eval.pages.reproduce import passk_command
from trl_prorl.eval.pages.step_times import step_time_notes
from trl_prorl.eval.pages.table import (
    NOT_MEASURED,
    POWER,
    Column,
    Table,
    cell,
    interval_cell,
    percent,
    table_of,
)
from trl_prorl.eval.run_folder.run import RecordedRun
from trl_prorl.record.provenance import describe_evaluation
from trl_prorl.record.run_files import training_note
from trl_prorl.variants import DIFFERENT_OBJECTIVE, optimises_another_objective


def objective_notes(runs: list[RecordedRun]) -> list[str]:
    """What is said where A stands beside a variant of another objective."""
    variants = {run.variant for run in runs}
    if "A" in variants and any(map(optimises_another_objective, variants)):
        return [DIFFERENT_OBJECTIVE]
    return []


def _share_cell(row: Comparison) -> str:
    if row.share is None:
        return NOT_MEASURED
    value, low, high = map(percent, row.share)
    return f"{value} [{low}, {high}]"


def _time_cell(row: Comparison) -> str:
    return interval_cell(row.step_time, ".2f")


def _p_cell(row: Comparison) -> str:
    return "n/a" if math.isnan(row.adjusted) else f"{row.adjusted:.2g}"


PAIR_COLUMNS = [
    Column("first − second", lambda row: f"{row.first} − {row.second}"),
    Column("outcome", lambda row: row.outcome),
]
DIFFERENCE_COLUMNS = [
    Column("first", lambda row: f"{row.first_value:.3f}"),
    Column("second", lambda row: f"{row.second_value:.3f}"),
    Column("difference [95 %]", lambda row: interval_cell(row.difference, "+.3f")),
    Column("p (Holm)", _p_cell),
]
RATIO_COLUMNS = [
    Column("seeds in common", lambda row: str(row.seeds)),
    Column(f"detectable difference ({POWER})", lambda row: cell(row.detectable, ".3f")),
    Column("first / second [95 %]", _share_cell),
    Column(
        "step time, first / second [95 %]",
        _time_cell,
        applies=lambda rows: any(row.step_time is not None for row in rows),
    ),
]
DIFFERENCE_NOTES = [
    "The outcome is pass@k of the trained models, or the accuracy of their greedy decoding, mean over seeds. Runs are "
    "paired by seed where both variants have it, and by prompt. The interval covers prompts and, of several runs, "
    "seeds. It is not corrected; p is.",
    "p: exact McNemar for greedy decoding of one run on each side, and for pass@k of k samples; else a t-test over "
    "prompts and, of several runs, the larger of that and of one over seeds. Holm over all pairs of variants, outcome "
    "by outcome. A difference is significant if its interval excludes 0 and p is at most 0.05.",
]
RATIO_NOTES = [
    "The interval of a ratio is over prompts, that of step times over steps, and both are over runs where there are "
    "several. A dash: no interval, or the second side's includes 0. What else a machine did during a step is not "
    "recorded."
]


def arms_table(comparisons: list[Comparison], title: str) -> Table:
    """Return a row per outcome and pair of arms, for the page."""
    columns = [*PAIR_COLUMNS, *DIFFERENCE_COLUMNS, *RATIO_COLUMNS]
    return table_of(title, columns, comparisons, [*DIFFERENCE_NOTES, *RATIO_NOTES])


def terminal_tables(comparisons: list[Comparison]) -> list[RichTable]:
    """Return the same for a terminal of 80 columns: differences, then what goes with them."""
    differences = table_of(
        "Variants, pair by pair", [*PAIR_COLUMNS, *DIFFERENCE_COLUMNS], comparisons, DIFFERENCE_NOTES
    )
    beyond = table_of("The same pairs: power and ratios", [*PAIR_COLUMNS, *RATIO_COLUMNS], comparisons, RATIO_NOTES)
    return [differences.to_rich(narrow=True), beyond.to_rich()]


def comparison_statements(comparisons: list[Comparison]) -> list[str]:
    """What the differences of two runs say."""
    lines = []
    for each in comparisons:
        if each.differs:
            body = f"`{each.first if each.difference.value > 0 else each.second}` is higher."
        elif math.isnan(each.difference.low):
            body = NO_INTERVAL_NOTE.removeprefix("n/a: ")  # which the difference says already
        else:
            body = f"no significant difference; detectable difference ({POWER}): {each.detectable:.3f}."
        difference = interval_cell(each.difference, "+.3f")
        lines.append(f"{each.outcome}: `{each.first}` − `{each.second}` {difference}: {body}")
    return lines


def verdict_statement(verdict: Verdict) -> str:
    """Say which arm is highest, from what it has no significant difference, and its difference from the others."""
    best = verdict.best
    scores = f"{best.sides['trained'].value:.3f} (base {best.sides['base'].value:.3f})"
    if verdict.tied:
        names = f"{', '.join([best.label, *verdict.tied[:-1]])} and {verdict.tied[-1]}"
        heading = f"{names} share the highest held-out pass@1, {scores}"
    elif verdict.others:
        heading = f"{best.label} has the highest held-out pass@1, {scores}"
    else:
        heading = f"{best.label} has a held-out pass@1 of {scores}"
    if verdict.is_significant:
        heading += ", significantly higher than base and every other variant"
    if verdict.gain is not None and verdict.gain.high < 0:
        heading += ", significantly lower than base"
    unclear = [name for name in verdict.not_behind if name not in verdict.tied]
    if verdict.gain is not None and verdict.gain.high < 0:
        unclear.remove("base")
    if unclear:
        *first, last = unclear
        names = f"{', '.join(first)} or {last}" if first else last
        heading += f", with no significant difference from {names}"
    details = [f"{best.label} − base: {interval_cell(verdict.gain, '+.3f')}."]
    for name in verdict.shown:
        row = verdict.comparisons.get(name)
        if row is not None:
            p = "" if math.isnan(row.adjusted) else f", p = {_p_cell(row)}"
            details.append(f"{row.first} − {row.second}: {interval_cell(row.difference, '+.3f')}{p}.")
    for name in verdict.others:
        if name not in verdict.comparisons:
            details.append(f"{best.label} is not compared with {name}, because the runs share no prompts or no seeds.")
    where = f"{verdict.title}: " if verdict.title else ""
    return f"**{where}{heading}.** {' '.join(details)}"


def _interval_note(verdict: Verdict) -> str:
    """What the intervals of a verdict cover, and for what p is corrected."""
    alone = "prompts alone: one training seed says nothing of the variation between seeds"
    over = f"prompts and {verdict.seeds} training seeds" if verdict.seeds > 1 else alone
    note = f"Intervals, here and in every table: 95 %, over {over}."
    if verdict.pairs:
        pairs = "1 pair" if verdict.pairs == 1 else f"{verdict.pairs} pairs"
        note += f" p: corrected for {pairs} of variants (Holm)."
    return note


def missing_statements(runs: list[RecordedRun]) -> list[str]:
    """Return which runs lack a held-out evaluation, and the command that makes it."""
    missing = [run for run in runs if run.passk is None]
    if not missing:
        return []
    names = ", ".join(f"`{run.name}`" for run in missing)
    can_be = [run for run in missing if run.can_be_evaluated]
    said = f"Not evaluated on held-out prompts: {names}."
    if can_be:
        said = f"Not evaluated on held-out prompts: {names}. Run `{passk_command(can_be)}`, then this report again."
    for run in missing:
        if not run.can_be_evaluated:
            said += f" {describe_evaluation(run.config, run.env, run.path)} evaluates `{run.name}`."
    return [said]


def statements(frame: Frame) -> list[str]:
    """Return the verdict on every ground, and the runs of which it knows nothing."""
    found = verdicts(frame)
    lines = [verdict_statement(verdict) for verdict in found]
    lines += dict.fromkeys(_interval_note(verdict) for verdict in found)  # each once
    lines += objective_notes(frame.runs)
    lines += training_statements(frame.runs)
    lines += missing_statements(frame.runs)
    return lines


def training_statements(runs: list[RecordedRun]) -> list[str]:
    """Say which runs were evaluated on prompts of their training set."""
    evaluated = [run for run in runs if run.passk and run.passk.get("in_training")]
    return [f"{run.name} was not evaluated on held-out prompts alone{training_note(run.passk)}." for run in evaluated]


def scores_panel(arms: list[ReportArm]) -> Panel:
    """Held-out pass@1 of every arm with its interval, base beside it."""
    labels, lines = row_labels([arm.evaluated_legend for arm in arms])

    def draw(axes):
        for row, arm in enumerate(arms):
            for side, colour, marker in (("base", OTHER_COLOUR, "s"), ("trained", colour_of(arm), "o")):
                value, low, high = arm.sides[side]
                label = side if row == 0 else None  # once in the legend
                axes.plot([low, high], [row, row], color=colour)
                axes.plot([value], [row], linestyle="", label=label, color=colour, marker=marker)
        axes.set_yticks(range(len(arms)), labels)
        axes.set_title("Held-out pass@1 and its 95 % interval", loc="right")
        axes.set(ylim=(len(arms) - 0.5, -0.5), xlabel="pass@1")
        axes.grid(alpha=0.2)

    return Panel("Held-out pass@1 of base and of every trained arm, with intervals", draw, max(2, lines) * len(arms))


def verdict_sections(frame: Frame) -> list[Section]:
    lines = statements(frame)
    several_grounds = len(lines) > 2 and lines[1].startswith("**")
    blocks = [Bullets(lines)] if several_grounds else [Text(line) for line in lines]
    evaluated = [arm for arm in frame.arms if arm.evaluated]
    if evaluated:
        blocks.append(Picture("verdict.png", "Held-out pass@1 of every arm", "", [scores_panel(evaluated)]))
    return [Section("Verdict", blocks, open=True)]


def sections(frame: Frame) -> list[Section]:
    rows, left = compare_with_references(frame)
    if not rows and not left:
        return []
    title = "Variants, pair by pair"
    blocks = []
    if rows:
        blocks.append(arms_table(rows, title))
    notes = [*left, *step_time_notes(frame.timing)]
    if notes:
        blocks.append(Bullets(notes))
    return [Section(title, blocks)]
