"""The trials of a branch: their table, their picture, and which one is better than the control."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from trl_prorl.eval.analysis.frame import Frame, RunGroup
from trl_prorl.eval.analysis.pairs import Comparison
from trl_prorl.eval.analysis.stability import last_mean
from trl_prorl.eval.pages.comparison import p_cell, scores_panel
from trl_prorl.eval.pages.curves import draw_kl, draw_share, draw_smooth
from trl_prorl.eval.pages.plotting import Picture, steps_panel
from trl_prorl.eval.pages.table import NOT_MEASURED, POWER, Column, Table, cell, interval_cell, table_of
from trl_prorl.eval.run_folder.run import OWN_KL, RecordedRun


CURVES = (
    ("reward", "Training reward", "batch mean", draw_smooth),
    (OWN_KL, "KL to its reference", "nats per token (k3), symlog", draw_kl),
    ("gold", "Training accuracy", "share of the batch", draw_share),
)
ONE_SEED = "Each trial is one training run: the intervals are over prompts and do not include the luck of training."


def since(run: RecordedRun, step: int) -> RecordedRun:
    """Return a run without what its log files have of the steps up to the branch."""
    metrics = run.metrics[run.metrics["step"] > step].reset_index(drop=True)
    events = run.events
    if events is not None:
        events = [row for row in events if row["step_applied"] >= step]
    return replace(run, metrics=metrics, events=events)


def group_trials(runs: list[RecordedRun]) -> list[RunGroup]:
    """Return each trial as a group of its own, under its name, with its place among those of its colour."""
    places = Counter()
    groups = []
    for row in Frame(runs).rows:
        groups.append(RunGroup(row.run.name, row.run.name, [row], places[row.run.variant]))
        places[row.run.variant] += 1
    return groups


def find_winner(comparisons: list[Comparison]) -> str | None:
    """
    Return the trial to go on with: of those that are significantly better than the control in the first outcome, the
    one with the highest score; `None` if there is none.
    """
    better = [row for row in comparisons if row.outcome == comparisons[0].outcome and row.favours(row.first)]
    return max(better, key=lambda row: row.first_value).first if better else None


@dataclass(frozen=True)
class TrialRow:
    """
    A trial in the table.

    Attributes:
        run ([`RecordedRun`]): Its run, since the branch.
        rows (`list[Comparison]`): Its comparisons with the control; of the control itself, those of another trial.
        is_control (`bool`): Whether it is the control.
    """

    run: RecordedRun
    rows: list[Comparison]
    is_control: bool

    @property
    def training(self) -> str:
        """Reward, KL and resets, a line each."""
        lines = [
            f"reward {cell(last_mean(self.run.measured('reward')), '.3f')}",
            f"KL {cell(last_mean(self.run.measured(OWN_KL)), '.2g')}",
            f"resets {len(self.run.reset_steps() or [])}",
        ]
        return "\n".join(lines)

    @property
    def scores(self) -> str:
        """The held-out scores, a line for each outcome."""
        values = [row.second_value if self.is_control else row.first_value for row in self.rows]
        return "\n".join(f"{row.outcome} {value:.3f}" for row, value in zip(self.rows, values, strict=True))

    def differences(self, text: Callable[[Comparison], str]) -> str:
        """Return a line for each outcome; the control has no difference from itself."""
        return "\n".join(NOT_MEASURED if self.is_control else text(row) for row in self.rows)


COLUMNS = (
    Column("trial", lambda row: row.run.name.replace(" ", "\n")),
    Column("training", lambda row: row.training),
    Column("score", lambda row: row.scores),
    Column("− keep [95 %]", lambda row: row.differences(lambda each: interval_cell(each.difference, "+.3f"))),
    Column("p", lambda row: row.differences(p_cell)),
    Column("detectable", lambda row: row.differences(lambda each: cell(each.detectable, ".3f"))),
)


def branch_table(groups: list[RunGroup], comparisons: list[Comparison]) -> Table:
    """Return a row for each trial, the control first."""
    rows = []
    for group in groups:
        is_control = group is groups[0]
        label = comparisons[0].first if is_control else group.label
        own = [row for row in comparisons if row.first == label]
        if own:  # else the trial is left out
            rows.append(TrialRow(group.runs[0], own, is_control))
    notes = [
        "Training: means of the last 10 % of the trial's steps, and resets since the branch. Score: held-out. p: "
        f"Holm-corrected for all trials. Detectable: the true difference that the test detects with {POWER}."
    ]
    return table_of("Trials", COLUMNS, rows, notes)


def branch_picture(groups: list[RunGroup]) -> Picture:
    """Return curves of reward, KL and accuracy since the branch, and the held-out scores."""
    panels = []
    for key, title, unit, draw in CURVES:
        if any(group.series(key) for group in groups):
            panels.append(steps_panel(title, groups, partial(draw, key=key), unit, legend=not panels))
    return Picture(
        "branch.png", "Reward, KL, accuracy and held-out scores of the trials", "", [*panels, scores_panel(groups)]
    )
