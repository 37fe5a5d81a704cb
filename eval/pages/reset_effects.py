"""What the resets did to the reward, and what an arm gained once the control had stalled."""

import math
from collections import Counter
from dataclasses import dataclass

from trl_prorl.eval.analysis.clamp import LEAST_GAIN, WINDOW, gain_since, stalled_at
from trl_prorl.eval.analysis.names import configuration_labels
from trl_prorl.eval.analysis.pairing import matched_control
from trl_prorl.eval.analysis.repetitions import repetitions
from trl_prorl.eval.analysis.resets import AFTER, BEFORE, Response, mean_dip, median_reconvergence, reset_responses
from trl_prorl.eval.analysis.smoothing import LAST_SHARE
from trl_prorl.eval.pages.cells import NOT_MEASURED, cell, over_seeds
from trl_prorl.eval.pages.curves import REASON_NAMES
from trl_prorl.eval.pages.document import Section
from trl_prorl.eval.pages.objective import objective_notes
from trl_prorl.eval.pages.table import Column, Table, table_of
from trl_prorl.eval.run_folder.run import Run


@dataclass(frozen=True)
class Arm:
    """
    A configuration, each run beside the control of its seeds.

    Attributes:
        label (`str`): Its name.
        pairs (`list[tuple[Run, Run | None]]`): Every run with its control; `None` where there is none.
    """

    label: str
    pairs: list[tuple[Run, Run | None]]

    @property
    def responses(self) -> list[Response]:
        """After every reset of every run."""
        return [one for run, _ in self.pairs for one in responses(run, run)]

    @property
    def control_responses(self) -> list[Response]:
        """Of the controls at the same steps, where they reset nothing."""
        return [one for run, control in self.pairs if control for one in responses(control, run)]


def arms(runs: list[Run]) -> list[Arm]:
    groups = repetitions(runs)
    return [
        Arm(label, [(run, matched_control(run, runs)) for run in group])
        for label, group in zip(configuration_labels(groups), groups, strict=True)
    ]


def responses(run: Run, resetting: Run) -> list[Response]:
    """The reward of one run after the resets of a run, its own or another's."""
    reward = run.measured("reward")
    if reward is None:
        return []
    return reset_responses(reward.index.to_numpy(), reward.to_numpy(), resetting.reset_steps() or [])


def _reasons_cell(arm: Arm) -> str:
    counts = Counter(
        REASON_NAMES.get(part, part)
        for run, _ in arm.pairs
        for _, reason in run.reset_reasons()
        for part in reason.split("+")
        if part
    )
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
    Column("arm", lambda arm: arm.label),
    Column(
        "resets",
        lambda arm: str(sum(len(run.reset_steps() or []) for run, _ in arm.pairs)),
        "**resets**, **reasons**: over all seeds; a reset for several reasons counts under each.",
    ),
    Column("reasons", _reasons_cell),
    Column(
        "dip",
        lambda arm: cell(mean_dip(arm.responses), ".3f"),
        f"**dip**: the mean training reward of the {BEFORE} steps before a reset less the lowest mean over {AFTER} "
        "steps in a row between it and the next reset, at least 0; mean over the resets.",
    ),
    Column(
        "control's dip",
        lambda arm: cell(mean_dip(arm.control_responses), ".3f"),
        "**control's dip**, **control's steps**: the same of the control of the same base and training seed at the "
        "same steps, where it resets nothing. The lowest of many means lies below the level before by chance alone: a "
        "reset costs reward where its dip is deeper than the control's.",
    ),
    Column(
        "steps to reconverge",
        lambda arm: _reconvergence_cell(arm.responses),
        f"**steps to reconverge**: from a reset to the first {AFTER} steps in a row, all after it, whose mean reward "
        f"is at least that of the {BEFORE} steps before it; 0 if the first {AFTER} are. Not back: not before the next "
        "reset or the end. The median is that of Kaplan and Meier, which counts these as longer than they were "
        "watched.",
    ),
    Column("control's steps", lambda arm: _reconvergence_cell(arm.control_responses)),
]


def reset_table(runs: list[Run]) -> Table | None:
    """Dip and reconvergence of every configuration with resets; `None` if there is none."""
    rows = [arm for arm in arms(runs) if arm.responses]
    if not rows:
        return None
    return table_of("Dips and reconvergence after the resets", RESET_COLUMNS, rows, objective_notes(runs))


def _stalled(control: Run) -> int | None:
    reward = control.measured("reward")
    return None if reward is None else stalled_at(reward.index.to_numpy(), reward.to_numpy())


def _gain(run: Run, since: int) -> float | None:
    reward = run.measured("reward")
    return None if reward is None else gain_since(reward.index.to_numpy(), reward.to_numpy(), since)


@dataclass(frozen=True)
class ClampGain:
    """
    A configuration since its controls stalled; of the runs whose control did.

    Attributes:
        label (`str`): Its name.
        controls (`int`): Runs that have a control.
        since (`list[int]`): Step at which each control stalled.
        gains, differences (`list[float]`): Gain since that step, and that gain less the control's own.
    """

    label: str
    controls: int
    since: list[int]
    gains: list[float]
    differences: list[float]


def clamp_gain(arm: Arm) -> ClampGain:
    since, gains, differences = [], [], []
    for run, control in arm.pairs:
        step = None if control is None else _stalled(control)
        gain, own = (None, None) if step is None else (_gain(run, step), _gain(control, step))
        if gain is not None and own is not None:
            since.append(step)
            gains.append(gain)
            differences.append(gain - own)
    return ClampGain(arm.label, sum(control is not None for _, control in arm.pairs), since, gains, differences)


def _since_cell(row: ClampGain) -> str:
    if not row.since:
        return NOT_MEASURED
    return str(row.since[0]) if len(set(row.since)) == 1 else f"{min(row.since)} to {max(row.since)}"


CLAMP_COLUMNS = [
    Column("arm", lambda row: row.label),
    Column(
        "control stalled",
        lambda row: f"{len(row.since)} of {row.controls}",
        "**control stalled**: runs whose control, of the same task, base, training seed, length and learning rate, "
        f"stalled; of those that have one. It has stalled at the first step at which the mean reward of its last "
        f"{WINDOW} steps is so high that no later mean over {WINDOW} steps exceeds it by more than "
        f"{LEAST_GAIN:g}; not if that is within the last {100 * LAST_SHARE:.0f} % of its steps (at least {WINDOW}).",
    ),
    Column("at step", _since_cell),
    Column(
        "gain after the clamp [95 %]",
        lambda row: over_seeds(row.gains, "+.3f"),
        f"**gain after the clamp**: the arm's mean reward over its last {100 * LAST_SHARE:.0f} % of steps (at least "
        f"{WINDOW}) less that over the {WINDOW} steps up to the one at which its control had stalled. Mean over seeds "
        "with Student's t-interval.",
    ),
    Column(
        "less the control's [95 %]",
        lambda row: over_seeds(row.differences, "+.3f"),
        "**less the control's**: that gain less the control's own, which by the definition of a stall is hardly above "
        f"{LEAST_GAIN:g} and may be below 0; paired by seeds.",
    ),
]


def clamp_table(runs: list[Run]) -> Table | None:
    """The gain of every configuration since its control stalled; `None` if no control did."""
    rows = [clamp_gain(arm) for arm in arms(runs) if arm.pairs[0][0].variant != "control"]
    rows = [row for row in rows if row.controls]
    if not any(row.since for row in rows):
        return None
    notes = ["Training reward. Does an arm go on improving where the fixed reference of the control holds it?"]
    return table_of("Gain after the clamp", CLAMP_COLUMNS, rows, notes + objective_notes(runs))


def sections(runs: list[Run]) -> list[Section]:
    return [Section(table.title, [table]) for table in (reset_table(runs), clamp_table(runs)) if table]
