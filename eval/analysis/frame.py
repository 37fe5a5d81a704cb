"""The frame of a report: its runs, grouped by variant over seeds, and the numbers that several sections show."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from trl_prorl.eval.analysis.configurations import TASK, arm_labels, repetitions, setting, why_not_paired
from trl_prorl.eval.analysis.passk import SIDES, gain, largest_k, per_prompt, score
from trl_prorl.eval.analysis.stability import LEAST_STEPS
from trl_prorl.eval.analysis.statistics import Estimate, prompts_and_seeds
from trl_prorl.eval.analysis.timing import Timing
from trl_prorl.eval.run_folder.run import GROUND, MODEL, RecordedRun
from trl_prorl.variants import VARIANTS


def step_seconds(run: RecordedRun) -> np.ndarray | None:
    """
    Return the seconds of each optimizer step, shape (T,), each with an equal share of all validation. These compare
    even if only some steps generate, or if a trigger needs evaluations that other runs do not have.
    """
    seconds = run.measured("time_step")
    if seconds is None:
        return None
    validation = run.total("time_eval") or 0.0
    return seconds.to_numpy() + validation / len(seconds)


def mean_step_seconds(run: RecordedRun) -> float | None:
    """Return the mean seconds of an optimizer step, validation included."""
    seconds = step_seconds(run)
    return None if seconds is None else float(seconds.mean())


def throughput(run: RecordedRun) -> float | None:
    """Return completion tokens in the loss per second, counted in every pass; `None` if not measured."""
    speed = run.measured("tokens_per_second")
    seconds = run.measured("time_step")
    if speed is None or seconds is None:
        return None
    return float((speed * seconds).sum() / seconds.sum())


def reference_share(run: RecordedRun) -> float | None:
    """Return the share of the time that was spent scoring with the reference, in [0, 1]."""
    reference = run.stage_total("ref")
    step = run.total("time_step")
    return None if reference is None or not step else reference / step


def stage_seconds(row: "Row", stage: str) -> float | None:
    """
    Return the mean seconds per step of one stage (`rollout`, `old`, `ref`, `update`); `None` if the run has no step
    time.
    """
    seconds = row.run.stage_total(stage)
    steps = row.run.measured("time_step")
    if not row.timed or seconds is None or steps is None:
        return None
    return seconds / len(steps)


def peak_memory(run: RecordedRun) -> float | None:
    """Return the largest GPU allocation in any step, in GiB."""
    values = run.measured("peak_memory_gib")
    return None if values is None else float(values.max())


def _have_steps(*runs: RecordedRun) -> bool:
    """Return whether all runs have enough steps for a mean: the first steps of a run are slow."""
    return all(len(run.metrics) >= LEAST_STEPS for run in runs)


class Row:
    """
    A run of a report, with the numbers that several tables show; `None` if one was not measured.

    Step times are compared with those of the nearest `control`; `own_control` has the same ground and seeds. Step
    times count as not measured if the run trained in parallel with another one of the report.
    """

    def __init__(self, run: RecordedRun, runs: list[RecordedRun], timing: Timing):
        self.run = run
        self.base, self.trained = (score(run, side, 1) for side in SIDES)
        self.gain = gain(run.passk, 1) if run.passk else None
        resets = run.reset_steps()
        self.resets = None if resets is None else len(resets)
        self.steps = int(run.metrics["step"].max())
        self.timed = timing.alone(run)
        self.seconds = mean_step_seconds(run) if self.timed else None
        self.throughput = throughput(run) if self.timed else None
        self.reference_calls = run.total("ref_forward_calls")
        self.reference_share = reference_share(run)
        controls = (other for other in runs if other.variant == "control")
        self.control = max(controls, key=self._agreement, default=None)
        self.own_control = None
        if self.control and self._agreement(self.control)[:2] == (True, True):
            self.own_control = self.control
        self.over_control = None
        if self.seconds and self.control and timing.alone(self.control) and _have_steps(run, self.control):
            of_control = mean_step_seconds(self.control)
            self.over_control = self.seconds / of_control if of_control else None

    def _agreement(self, control: RecordedRun) -> tuple[bool, bool, bool]:
        """
        Return whether it agrees in ground, in seeds of base and training, and in `beta`; the largest tuple is the
        nearest control.
        """
        same_beta = control.config.get("beta") == self.run.config.get("beta")
        return control.ground == self.run.ground, control.repetition == self.run.repetition, same_beta


@dataclass(frozen=True, eq=False)
class ReportArm:
    """
    Runs that differ only in seeds, under a label that is unique in the report; `full_label` always contains the
    variant, for legends. `place` is its position among those of its colour.
    """

    label: str
    full_label: str
    rows: list[Row]
    place: int = 0

    @property
    def runs(self) -> list[RecordedRun]:
        return [row.run for row in self.rows]

    @property
    def evaluated(self) -> list[RecordedRun]:
        return [run for run in self.runs if run.passk]

    @property
    def variant(self) -> str:
        return self.rows[0].run.variant

    @property
    def seeds(self) -> int:
        return len(self.runs)

    @property
    def legend(self) -> str:
        return self._with_seeds(self.seeds)

    @property
    def evaluated_legend(self) -> str:
        """The legend for measurements on held-out prompts."""
        return self._with_seeds(len(self.evaluated))

    def _with_seeds(self, seeds: int) -> str:
        return self.full_label if seeds == 1 else f"{self.full_label}, {seeds} seeds"

    def series(self, key: str) -> list[pd.Series]:
        """Return one metric for each run that measured it."""
        series = [run.measured(key) for run in self.runs]
        return [values for values in series if values is not None]

    def values(self, measure: Callable[[Row], float | None]) -> list[float]:
        """Return a number for each run that has it."""
        values = [measure(row) for row in self.rows]
        return [value for value in values if value is not None]

    @cached_property
    def same_prompts(self) -> bool:
        return all(why_not_paired(self.evaluated[0], run) is None for run in self.evaluated)

    def estimate(self, values_of: Callable[[RecordedRun], np.ndarray], least: float = 0.0) -> Estimate | None:
        """Return a score with its interval over prompts and seeds; at each prompt its value is at least `least`."""
        estimate = prompts_and_seeds([values_of(run) for run in self.evaluated], self.same_prompts, least)
        if estimate is None:
            return None
        # A t-interval of two shares may leave the range they can take.
        return Estimate(*np.clip(estimate, least, 1.0).tolist())

    @cached_property
    def sides(self) -> dict[str, Estimate | None]:
        """Held-out pass@1 of the starting model and of the trained models."""
        return {side: self.estimate(lambda run, side=side: per_prompt(run.passk, side)) for side in SIDES}

    def gain(self) -> Estimate | None:
        return self.estimate(lambda run: per_prompt(run.passk, "trained") - per_prompt(run.passk, "base"), -1.0)

    @cached_property
    def at_largest_k(self) -> Estimate | None:
        return self.estimate(lambda run: per_prompt(run.passk, "trained", largest_k(run)))

    @property
    def largest_ks(self) -> list[int]:
        return sorted({largest_k(run) for run in self.evaluated})


class Frame:
    """
    The runs of a report, sorted, each with its row of numbers; `arms` are its configurations over seeds, in the order
    of the runs.
    """

    def __init__(self, runs: list[RecordedRun]):
        self.runs = runs
        self.timing = Timing(runs)
        self.rows = [Row(run, runs, self.timing) for run in runs]
        row_of = {id(row.run): row for row in self.rows}
        groups = repetitions(runs)
        counts = Counter()
        self.arms = []
        labels = zip(arm_labels(groups), arm_labels(groups, with_variant=True), groups, strict=True)
        for label, full_label, group in labels:
            colour = group[0].variant if group[0].variant in VARIANTS else None
            rows = [row_of[id(run)] for run in group]
            self.arms.append(ReportArm(label, full_label, rows, counts[colour]))
            counts[colour] += 1

    @cached_property
    def grounds(self) -> dict[str, list[ReportArm]]:
        """The variants of every ground by its title: task and unusual settings; "" if there is only one ground."""
        first = [arm.runs[0] for arm in self.arms]
        usual = usual_values(first)
        titles = {}
        grounds = {}
        for arm, run in zip(self.arms, first, strict=True):
            if run.ground not in titles:
                title = title_of_ground(run, usual)
                titles[run.ground] = title if title not in grounds else f"{title} ({len(grounds) + 1})"
            grounds.setdefault(titles[run.ground], []).append(arm)
        return grounds


def usual_values(runs: list[RecordedRun]) -> dict[str, str]:
    """Return the keys in which the grounds of runs differ, each with the `repr` of its most common value."""
    keys = []
    for key in GROUND:
        values = {repr(run.config.get(key) or None) for run in runs}
        if len(values) > 1:
            keys.append(key)
    if len({run.base[0] for run in runs}) > 1 and TASK not in keys:
        keys.append(MODEL)
    usual = {}
    for key in keys:
        counts = Counter(repr(run.config.get(key)) for run in runs)
        usual[key] = counts.most_common(1)[0][0]
    return usual


def title_of_ground(run: RecordedRun, usual: dict[str, str]) -> str:
    """Return a run's task, if tasks differ, and its unusual settings."""
    words = []
    for key, usual_value in usual.items():
        value = run.config.get(key)
        if value and (key == TASK or repr(value) != usual_value):
            words.append(setting(key, value))
    return ", ".join(words)
