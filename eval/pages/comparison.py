"""Comparisons: the answer of `compare`, the verdict of a report, and differences pair by pair."""

import math
from collections import defaultdict
from collections.abc import Mapping

from rich.table import Table as RichTable

from trl_prorl.cli.variants import DIFFERENT_OBJECTIVE, optimises_another_objective
from trl_prorl.eval.analysis.frame import Frame, RunGroup
from trl_prorl.eval.analysis.pairs import Comparison, Verdict, compare_with_references, verdicts
from trl_prorl.eval.analysis.statistics import MIN_PROMPTS
from trl_prorl.eval.pages.document import Section, bullets
from trl_prorl.eval.pages.plotting import Panel, Picture, bars_panel, colour_of
from trl_prorl.eval.pages.reproduce import passk_command
from trl_prorl.eval.pages.table import POWER, Column, cell, interval_cell, table_of
from trl_prorl.eval.run_folder.run import UNKNOWN_COLOUR, RecordedRun
from trl_prorl.run.log_files import training_note
from trl_prorl.run.provenance import describe_evaluation
from trl_prorl.text import visible


def objective_notes(runs: list[RecordedRun]) -> list[str]:
    """Return the note for a comparison of A with a variant that has another objective."""
    variants = {run.variant for run in runs}
    if "A" in variants and any(map(optimises_another_objective, variants)):
        return [DIFFERENT_OBJECTIVE]
    return []


def stale_notes(runs: list[RecordedRun]) -> list[str]:
    """Return lines about scores of other weights than the finished runs', and of different verifiers or precisions."""
    stale = []
    for run in runs:
        if run.step_of_evaluation not in (None, run.last_step):
            stale.append(f"`{run.name}` (evaluated at step {run.step_of_evaluation}, last step {run.last_step})")
        elif run.has_changed_weights:
            stale.append(f"`{run.name}` (its weights are no longer those that were evaluated)")
    lines = []
    if stale:
        lines = [f"These held-out scores are not those of the finished runs: {', '.join(stale)}. Evaluate them again."]
    evaluations = [run.passk for run in runs if run.passk]
    graders = defaultdict(set)  # of the same prompts
    for passk in evaluations:
        graders[tuple(passk["prompt_ids"])].add(passk.get("grader"))
    if any(len(versions - {None}) > 1 for versions in graders.values()):
        lines.append(
            "Not all answers were graded by the same version of the verifiers: run `trl-prorl passk` again for all "
            "runs, which grades the kept samples and draws none."
        )
    precisions = {passk["dtype"] for passk in evaluations if "dtype" in passk}
    if len(precisions) > 1:
        lines.append(f"The models were not all evaluated in one precision: {', '.join(sorted(precisions))}.")
    return lines


def p_cell(row: Comparison) -> str:
    """Return p after Holm, or n/a."""
    return "n/a" if math.isnan(row.adjusted) else f"{row.adjusted:.2g}"


COLUMNS = [
    Column("first − second", lambda row: f"{row.first} − {row.second}"),
    Column("outcome", lambda row: row.outcome),
    Column("first", lambda row: f"{row.first_value:.3f}"),
    Column("second", lambda row: f"{row.second_value:.3f}"),
    Column("difference [95 %]", lambda row: interval_cell(row.difference, "+.3f")),
    Column("p (Holm)", p_cell),
    Column(
        "detectable",
        lambda row: cell(row.detectable, ".3f"),
        f"**detectable**: the smallest true difference that the test detects with {POWER}, after Holm.",
    ),
]
SEEDS = Column("seeds in common", lambda row: str(row.seeds))
DIFFERENCES = "Pairwise differences"
MAX_NAMED = 6  # pairs in one sentence
SIDE_OFFSET = 0.13  # of a row of the picture, so that neither interval hides the other
MAX_LEFT_OUT = 3  # runs or pairs in the line of the answer
LONG_REASON = 120  # letters of a line that is cut there
DIFFERENCE_NOTES = [
    "Outcome: pass@k or greedy accuracy of the trained models, mean over seeds. Runs are paired by prompt, and by "
    "seed if both variants have it. A difference is significant if its interval excludes 0 and p ≤ 0.05.",
    "p: exact McNemar test for one run per side with greedy decoding, or with k = n; otherwise a t-test over prompts "
    "and, with several runs, over seeds: the larger p counts. p is Holm-corrected over all pairs of an outcome; the "
    "interval is not. It covers prompts and, with several runs, seeds.",
]


def terminal_table(comparisons: list[Comparison]) -> RichTable:
    """Return a row per outcome and pair of variants, for a terminal of 100 columns."""
    return table_of(DIFFERENCES, COLUMNS, comparisons).to_rich(narrow=True)


def left_out_statement(lines: list[str]) -> str:
    """Return an answer's skipped runs and pairs, each with its reason if short."""
    shown = []
    for line in lines[:MAX_LEFT_OUT]:
        shown.append(line if len(line) <= LONG_REASON else f"{line.partition(': ')[0]} (reason below).")
    if len(lines) > MAX_LEFT_OUT:
        shown.append(f"{len(lines) - MAX_LEFT_OUT} more are left out (see below).")
    return " ".join(shown)


def answer(comparisons: list[Comparison], labels: Mapping[str, str]) -> str:
    """
    Answer in one sentence whether runs or variants differ in the first outcome, after Holm's correction.

    Args:
        comparisons (`list[Comparison]`): At least one; those of an outcome stand together.
        labels (`Mapping[str, str]`): The runs or variants by name, each with its variant.
    """
    outcome = comparisons[0].outcome
    rows = [row for row in comparisons if row.outcome == outcome and not math.isnan(row.difference.low)]
    if not rows:
        return f"No answer: fewer than {MIN_PROMPTS} prompts give no confidence interval. Evaluate more: --prompts."
    names = {row: f"{labels[row.first]} − {labels[row.second]}" for row in rows}
    if len(rows) == 1:
        row = rows[0]
        difference = f"{names[row]} = {interval_cell(row.difference, '+.3f')}, p = {p_cell(row)}"
        if row.differs:
            direction = "higher" if row.difference.value > 0 else "lower"
            return f"Yes: {difference}: significantly {direction} {outcome}."
        return (
            f"No significant difference in {outcome}: {difference}; this test would detect a difference of "
            f"{row.detectable:.3f} with {POWER}."
        )
    differing = sorted((row for row in rows if row.differs), key=lambda row: row.adjusted)
    if not differing:
        return (
            f"No significant difference in {outcome} in any of {len(rows)} pairs; every test would detect a "
            f"difference of {max(row.detectable for row in rows):.3f} with {POWER}."
        )
    shown = [f"{names[row]} = {row.difference.value:+.3f} (p = {p_cell(row)})" for row in differing[:MAX_NAMED]]
    if len(differing) > MAX_NAMED:
        shown.append(f"and {len(differing) - MAX_NAMED} more")
    return (
        f"Yes: {len(differing)} of {len(rows)} pairs differ significantly in {outcome} (p Holm-corrected): "
        f"{'; '.join(shown)}."
    )


def verdict_statement(verdict: Verdict) -> str:
    """
    Return which variant is highest, those from which it has no significant difference, and its difference from others.
    """
    best = verdict.best
    scores = f"{best.sides['trained'].value:.3f} (base {best.sides['base'].value:.3f})"
    if verdict.tied:
        names = f"{', '.join([best.label, *verdict.tied[:-1]])} and {verdict.tied[-1]}"
        heading = f"{names} share the highest held-out pass@1, {scores}"
    elif verdict.others:
        heading = f"{best.label} has the highest held-out pass@1, {scores}"
    else:
        heading = f"{best.label} has a held-out pass@1 of {scores}"
    if verdict.title:
        heading = f"{verdict.title}: {heading}"
    if verdict.untested:
        return f"**{heading}.** Not tested: fewer than {MIN_PROMPTS} prompts."
    if verdict.is_significant:
        heading += ", significantly higher than base and every other variant"
    below_base = verdict.gain.high < 0
    if below_base:
        heading += ", significantly lower than base"
    unclear = [name for name in verdict.not_behind if name not in verdict.tied and not (name == "base" and below_base)]
    if unclear:
        *first, last = unclear
        names = f"{', '.join(first)} or {last}" if first else last
        heading += f", with no significant difference from {names}"
    details = [f"{best.label} − base: {interval_cell(verdict.gain, '+.3f')}."]
    for name in verdict.shown:
        row = verdict.comparisons.get(name)
        if row is not None:
            p = "" if math.isnan(row.adjusted) else f", p = {p_cell(row)}"
            details.append(f"{row.first} − {row.second}: {interval_cell(row.difference, '+.3f')}{p}.")
    for name in verdict.others:
        if name not in verdict.comparisons:
            details.append(f"{best.label} is not compared with {name} ({DIFFERENCES} says why).")
    return f"**{heading}.** {' '.join(details)}"


def _interval_note(verdict: Verdict) -> str:
    """Describe a verdict's intervals, and the number of pairs for which p is corrected."""
    over = "prompts only: one training seed does not show the variation between seeds"
    if verdict.seeds > 1:
        over = f"prompts and {verdict.seeds} training seeds"
    note = f"All intervals are 95 % confidence intervals over {over}."
    if verdict.pairs:
        pairs = "1 pair" if verdict.pairs == 1 else f"{verdict.pairs} pairs"
        note += f" p is Holm-corrected for {pairs} of variants."
    return note


def missing_statements(runs: list[RecordedRun]) -> list[str]:
    """Return which runs lack a held-out evaluation, and the command that adds it."""
    missing = [run for run in runs if run.passk is None]
    if not missing:
        return []
    names = ", ".join(f"`{run.name}`" for run in missing)
    can_be = [run for run in missing if run.can_be_evaluated]
    line = f"Not evaluated on held-out prompts: {names}."
    if can_be:
        line += f" Run `{passk_command(can_be)}`, then this report again."
    for run in missing:
        if not run.can_be_evaluated:
            line += f" Evaluate `{run.name}` with {describe_evaluation(run.config, run.env, run.path)}."
    return [line]


def statements(frame: Frame) -> list[str]:
    """Return the verdict on every ground, and the runs that were not evaluated."""
    found = verdicts(frame)
    lines = [verdict_statement(verdict) for verdict in found]
    lines += dict.fromkeys(_interval_note(verdict) for verdict in found if not verdict.untested)  # each once
    lines += objective_notes(frame.runs)
    lines += training_statements(frame.runs)
    lines += missing_statements(frame.runs)
    return lines


def training_statements(runs: list[RecordedRun]) -> list[str]:
    """Return a sentence for every run that was evaluated on prompts of its training set."""
    evaluated = [run for run in runs if run.passk and run.passk.get("in_training")]
    return [f"{run.name} was not evaluated only on held-out prompts{training_note(run.passk)}." for run in evaluated]


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

    alt = "Held-out pass@1 of the starting model and of every trained variant, with 95 % intervals"
    labels = [group.evaluated_legend for group in groups]
    return bars_panel("Held-out pass@1 with 95 % interval", alt, labels, "pass@1", draw, lines=2)


def verdict_section(frame: Frame) -> Section:
    lines = statements(frame)
    several_grounds = len(lines) > 2 and lines[1].startswith("**")
    blocks = [bullets(lines)] if several_grounds else list(map(visible, lines))
    evaluated = [group for group in frame.groups if group.evaluated]
    if evaluated:
        blocks.append(Picture("verdict.png", "Held-out pass@1 of every variant", "", [scores_panel(evaluated)]))
    return Section("Verdict", blocks, open=True)


def section(frame: Frame) -> Section | None:
    """Return the differences of all pairs with a reference; `None` without an evaluated variant."""
    rows, left_out = compare_with_references(frame)
    if not rows and not left_out:
        return None
    blocks = []
    if rows:
        blocks.append(table_of(DIFFERENCES, [*COLUMNS, SEEDS], rows, DIFFERENCE_NOTES))
    if left_out:
        blocks.append(bullets(left_out))
    return Section(DIFFERENCES, blocks)
