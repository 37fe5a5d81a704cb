"""The effect of resets on the reward."""

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
    """The reward of a variant after every reset of every run, and the reward of the controls at the same steps."""

    arm: ReportArm
    own: list[Response]
    control: list[Response]


def _reward(run: RecordedRun | None) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the steps and training rewards of a run; `None` if not measured."""
    reward = None if run is None else run.measured("reward")
    return None if reward is None else (reward.index.to_numpy(), reward.to_numpy())


def _responses(run: RecordedRun | None, resets: list[int] | None) -> list[Response]:
    """Return the responses of a run's reward to resets at these steps; empty without a reward."""
    reward = _reward(run)
    return reset_responses(*reward, resets or []) if reward else []


def reset_effects(arm: ReportArm) -> ResetEffects:
    own = []
    control = []
    for row in arm.rows:
        resets = row.run.reset_steps()
        own += _responses(row.run, resets)
        control += _responses(row.own_control, resets)  # at the same steps, where the control resets nothing
    return ResetEffects(arm, own, control)


def _reasons(arm: ReportArm) -> str:
    reasons = (reason.split("+") for run in arm.runs for _, reason in run.reset_reasons())
    counts = Counter(part.replace("_", " ") for parts in reasons for part in parts if part)
    return ", ".join(f"{reason} {count}" for reason, count in counts.most_common()) or NOT_MEASURED


def _reconvergence_cell(found: list[Response]) -> str:
    """Return the median, with the number that did not recover: `4 (3 of 25 not back)`."""
    median = median_reconvergence(found)
    if median is None:
        return NOT_MEASURED
    out = sum(response.censored for response in found)
    text = "more than half not back" if math.isinf(median) else f"{median:g}"
    return f"{text} ({out} of {len(found)} not back)" if out else text


RESET_COLUMNS = [
    Column("variant", lambda row: row.arm.label),
    Column(
        "resets",
        lambda row: str(sum(row.arm.values(lambda one: one.resets))),
        "**resets**, **reasons**: counts over all seeds; a reset with several reasons counts for each.",
    ),
    Column("reasons", lambda row: _reasons(row.arm)),
    Column(
        "dip",
        lambda row: cell(mean_dip(row.own), ".3f"),
        f"**dip**: mean training reward of the {BEFORE} steps before a reset, minus the lowest mean over {AFTER} "
        "consecutive steps before the next reset; at least 0. Mean over the resets.",
    ),
    Column(
        "control's dip",
        lambda row: cell(mean_dip(row.control), ".3f"),
        "**control's dip**, **control's steps**: the same for the control with the same base and training seed at the "
        "same steps, where it resets nothing. The lowest of many means is below the earlier level by chance alone, so "
        "a reset costs reward only if its dip is deeper than the control's.",
    ),
    Column(
        "steps to reconverge",
        lambda row: _reconvergence_cell(row.own),
        f"**steps to reconverge**: steps from a reset to the first {AFTER} consecutive steps after it whose mean "
        f"reward reaches the mean of the {BEFORE} steps before it; 0 if the first {AFTER} do. Not back: not before "
        "the next reset or the end of the run. The median is the Kaplan–Meier estimate, which treats these as "
        "censored.",
    ),
    Column("control's steps", lambda row: _reconvergence_cell(row.control)),
]


def reset_table(frame: Frame) -> Table | None:
    """Return dip and reconvergence of every variant with resets; `None` if there is none."""
    rows = [row for row in map(reset_effects, frame.arms) if row.own]
    return table_of("Reward dip and reconvergence after resets", RESET_COLUMNS, rows) if rows else None


def sections(frame: Frame) -> list[Section]:
    table = reset_table(frame)
    return [Section(table.title, [table])] if table else []
