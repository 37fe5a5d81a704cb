"""What the resets did to the reward."""

import math
from collections import Counter
from typing import NamedTuple

import numpy as np

from trl_prorl.eval.analysis.frame import Frame, ReportArm
from trl_prorl.eval.analysis.resets import (
    AFTER,
    BEFORE,
    Response,
    mean_dip,
    median_reconvergence,
    reset_responses,
)
from trl_prorl.eval.pages.document import Section
from trl_prorl.eval.pages.table import NOT_MEASURED, Column, Table, cell, table_of
from trl_prorl.eval.run_folder.run import RecordedRun


class ResetEffects(NamedTuple):
    """An arm's reward after every reset of every run, and that of the controls at the same steps."""

    arm: ReportArm
    own: list[Response]
    control: list[Response]


def _reward(run: RecordedRun | None) -> tuple[np.ndarray, np.ndarray] | None:
    """Steps and training reward of a run that measured it."""
    reward = None if run is None else run.measured("reward")
    return None if reward is None else (reward.index.to_numpy(), reward.to_numpy())


def _responses(run: RecordedRun | None, resets: list[int] | None) -> list[Response]:
    """Return the responses of a run's reward to resets at these steps; none where it has no reward."""
    reward = _reward(run)
    return reset_responses(*reward, resets or []) if reward else []


def reset_effects(arm: ReportArm) -> ResetEffects:
    own = []
    control = []
    for row in arm.rows:
        resets = row.run.reset_steps()
        own += _responses(row.run, resets)
        control += _responses(row.own_control, resets)  # a control without resets has none of its own at those steps
    return ResetEffects(arm, own, control)


def _reasons(arm: ReportArm) -> str:
    reasons = (reason.split("+") for run in arm.runs for _, reason in run.reset_reasons())
    counts = Counter(part.replace("_", " ") for parts in reasons for part in parts if part)
    return ", ".join(f"{reason} {count}" for reason, count in counts.most_common()) or NOT_MEASURED


def _reconvergence_cell(found: list[Response]) -> str:
    """Median, with the number that were not back: `4 (3 of 25 not back)`."""
    median = median_reconvergence(found)
    if median is None:
        return NOT_MEASURED
    out = sum(response.censored for response in found)
    text = "more than half not back" if math.isinf(median) else f"{median:g}"
    return f"{text} ({out} of {len(found)} not back)" if out else text


RESET_COLUMNS = [
    Column("arm", lambda row: row.arm.label),
    Column(
        "resets",
        lambda row: str(sum(row.arm.values(lambda one: one.resets))),
        "**resets**, **reasons**: over all seeds; a reset for several reasons counts under each.",
    ),
    Column("reasons", lambda row: _reasons(row.arm)),
    Column(
        "dip",
        lambda row: cell(mean_dip(row.own), ".3f"),
        f"**dip**: the mean training reward of the {BEFORE} steps before a reset less the lowest mean over {AFTER} "
        "steps in a row between it and the next reset, at least 0; mean over the resets.",
    ),
    Column(
        "control's dip",
        lambda row: cell(mean_dip(row.control), ".3f"),
        "**control's dip**, **control's steps**: the same of the control of the same base and training seed at the "
        "same steps, where it resets nothing. The lowest of many means lies below the level before by chance alone: a "
        "reset costs reward where its dip is deeper than the control's.",
    ),
    Column(
        "steps to reconverge",
        lambda row: _reconvergence_cell(row.own),
        f"**steps to reconverge**: from a reset to the first {AFTER} steps in a row, all after it, whose mean reward "
        f"is at least that of the {BEFORE} steps before it; 0 if the first {AFTER} are. Not back: not before the next "
        "reset or the end. The median is that of Kaplan and Meier, which counts these as longer than they were "
        "watched.",
    ),
    Column("control's steps", lambda row: _reconvergence_cell(row.control)),
]


def reset_table(frame: Frame) -> Table | None:
    """Dip and reconvergence of every arm with resets; `None` if there is none."""
    rows = [row for row in map(reset_effects, frame.arms) if row.own]
    return table_of("Dips and reconvergence after the resets", RESET_COLUMNS, rows) if rows else None


def sections(frame: Frame) -> list[Section]:
    table = reset_table(frame)
    return [Section(table.title, [table])] if table else []
