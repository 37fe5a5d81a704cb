"""Comparisons: the answer of `compare`, the verdict of a report, and differences pair by pair."""

import math
from itertools import pairwise

from trl_prorl.cli.variants import DIFFERENT_OBJECTIVE, optimises_another_objective
from trl_prorl.eval.analysis.frame import Frame, RunGroup
from trl_prorl.eval.analysis.pairs import Comparison, Verdict, verdicts
from trl_prorl.eval.analysis.statistics import MIN_PROMPTS
from trl_prorl.eval.pages.page import Section
from trl_prorl.eval.pages.plotting import ROW_LETTERS, Panel, colour_of, wrap
from trl_prorl.eval.pages.table import Column, Table, cell, interval_cell, table_of
from trl_prorl.eval.run_folder.run import UNKNOWN_COLOUR, RecordedRun
from trl_prorl.run.log_files import training_note
from trl_prorl.run.provenance import describe_evaluation


DIFFERENCES = "Pairwise differences"
MAX_NAMED = 6  # pairs in one sentence
SIDE_OFFSET = 0.13  # of a row of the picture, so that neither interval hides the other
COLUMNS = [
    Column("first − second", lambda row: f"{row.first} − {row.second}"),
    Column("outcome", lambda row: row.outcome),
    Column("first", lambda row: f"{row.first_value:.3f}"),
    Column("second", lambda row: f"{row.second_value:.3f}"),
    Column("difference [95 %]", lambda row: interval_cell(row.difference, "+.3f")),
    Column("p (Holm)", lambda row: cell(row.adjusted, ".2g")),
    Column("detectable", lambda row: cell(row.detectable, ".3f")),
    Column("seeds", lambda row: str(row.seeds)),
]
NOTE = (
    "Runs are paired by prompt, and by seed if both variants have it. p: exact McNemar test for one run per side with "
    "greedy decoding, or with k = n; otherwise a t-test over prompts and, with several runs, over seeds: the larger p "
    "counts. p is Holm-corrected over all pairs of an outcome; the interval is not. A difference is significant if "
    "its interval excludes 0 and p ≤ 0.05. detectable: the smallest true difference that the test detects with 80 % "
    "power. seeds: those in common."
)


def differences_table(comparisons: list[Comparison]) -> Table:
    """Return a row per outcome and pair of variants."""
    return table_of(DIFFERENCES, COLUMNS, comparisons, [NOTE])


def answer(comparisons: list[Comparison]) -> str:
    """
    Answer in one sentence whether runs or variants differ in the first outcome, after Holm's correction. Of single
    runs it says that they differ over prompts, and nothing about their variants.
    """
    outcome = comparisons[0].outcome
    rows = [row for row in comparisons if row.outcome == outcome and not math.isnan(row.difference.low)]
    if not rows:
        return f"No answer: fewer than {MIN_PROMPTS} prompts give no confidence interval. Evaluate more: --prompts."
    where = "over prompts and seeds"
    if all(row.seeds <= 1 for row in rows):
        where = "over prompts, between single runs (one seed each: other seeds may differ)"
    differing = sorted((row for row in rows if row.differs), key=lambda row: row.adjusted)
    if not differing:
        detectable = max(row.detectable for row in rows)
        return (
            f"No significant difference in {outcome} {where}; a difference of {detectable:.3f} would be detected "
            "(80 % power)."
        )
    shown = [
        f"{row.first} − {row.second} = {interval_cell(row.difference, '+.3f')} (p = {row.adjusted:.2g})"
        for row in differing[:MAX_NAMED]
    ]
    pairs = f"{len(differing)} of {len(rows)} pairs differ"
    return f"Yes: {pairs} significantly in {outcome} {where}: {'; '.join(shown)}."


def verdict_statement(verdict: Verdict) -> str:
    """Return which variant is highest, and those from which it has no significant difference."""
    best = verdict.best
    title = f"{verdict.title}: " if verdict.title else ""
    base, trained = (best.sides[side] for side in ("base", "trained"))
    rank = "the highest" if len(verdict.ranked) > 1 else "a"
    line = f"{title}{best.label} has {rank} held-out pass@1 of {trained.value:.3f} (base {base.value:.3f})"
    if verdict.untested:
        return f"{line}. Not tested: fewer than {MIN_PROMPTS} prompts."
    if verdict.is_significant:
        line += ", significantly higher than base and every other variant"
    elif verdict.not_behind:
        line += f", with no significant lead over {', '.join(verdict.not_behind)}"
    return f"{line}. {best.label} − base: {interval_cell(verdict.gain, '+.3f')}."


def statements(frame: Frame) -> list[str]:
    """Return the verdict on every ground, and the limits of these numbers."""
    return [*map(verdict_statement, verdicts(frame)), *limits(frame.runs)]


def limits(runs: list[RecordedRun]) -> list[str]:
    """Return what a comparison of these runs does not show, or shows only in part."""
    lines = []
    variants = {run.variant for run in runs}
    if "A" in variants and any(map(optimises_another_objective, variants)):
        lines.append(DIFFERENT_OBJECTIVE)
    for run in runs:
        if run.without_reset:
            lines.append(f"{run.name}: {run.variant} {run.without_reset}.")
        if run.passk is None:
            how = describe_evaluation(run.config, run.env, run.path)
            lines.append(f"{run.name} was not evaluated; evaluate it with {how}.")
        elif training_note(run.passk):
            lines.append(f"{run.name} was not evaluated only on held-out prompts{training_note(run.passk)}.")
        if run.has_old_scores:
            lines.append(f"{run.name}: its scores are not those of the finished run; evaluate it again.")
    for key in ("grader", "dtype", "split", "chat_template_kwargs"):
        if len({repr(run.passk.get(key)) for run in runs if run.passk}) > 1:
            lines.append(f"The runs were evaluated with different values of {key}: evaluate them again.")
    steps = {run.last_step for run in runs}
    if len(steps) > 1:
        lines.append(f"The runs have {min(steps)} to {max(steps)} steps. Scores are not matched by step.")
    ended = [run.measured("time_ended") for run in runs]
    spans = sorted((times.iloc[0], times.iloc[-1]) for times in ended if times is not None)
    if any(first[0] < second[0] < first[1] for first, second in pairwise(spans)):
        lines.append("Runs trained at the same time and may have slowed each other down: do not compare step times.")
    for key in ("hardware", "versions"):
        if len({repr(run.env.get(key)) for run in runs}) > 1:
            lines.append(f"The runs differ in {key} (env.json), so step times may not be comparable.")
    return lines


def scores_panel(groups: list[RunGroup]) -> Panel:
    """Draw held-out pass@1 of every variant with its interval, below that of the starting model."""

    def draw(axes):
        for row, group in enumerate(groups):
            for side, name, colour, marker, place in (
                ("base", "starting model", UNKNOWN_COLOUR, "s", row - SIDE_OFFSET),
                ("trained", "trained", colour_of(group), "o", row + SIDE_OFFSET),
            ):
                value, low, high = group.sides[side]
                label = name if row == 0 else None  # once in the legend
                axes.plot([low, high], [place, place], color=colour)
                axes.plot([value], [place], linestyle="", label=label, color=colour, marker=marker)
        axes.set_yticks(range(len(groups)), [wrap(group.legend, ROW_LETTERS) for group in groups])
        axes.set(ylim=(len(groups) - 0.5, -0.5), xlabel="held-out pass@1, with 95 % interval")
        axes.grid(alpha=0.2)

    alt = "Held-out pass@1 of the starting model and of every trained variant, with 95 % intervals"
    return Panel(alt, draw, 2 * len(groups))


def verdict_section(frame: Frame) -> Section:
    evaluated = [group for group in frame.groups if group.evaluated]
    text = "Intervals: 95 %, over prompts and, with several seeds, over seeds. With one seed, other seeds may differ."
    return Section("Verdict", [scores_panel(evaluated)] if evaluated else [], text, lines=statements(frame), open=True)


def section(frame: Frame) -> Section | None:
    """Return the differences of all pairs; `None` without a pair of evaluated variants."""
    grounds = verdicts(frame)
    rows = [row for verdict in grounds for row in verdict.found]
    skipped = [line for verdict in grounds for line in verdict.skipped]
    if not rows and not skipped:
        return None
    return Section(DIFFERENCES, tables=[differences_table(rows)] if rows else [], lines=skipped, open=True)
