"""The frame of a report: its runs, grouped by variant over seeds, and the numbers that several sections show."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from trl_prorl.eval.analysis.configurations import TASK, group_labels, pairing_obstacle, repetitions, setting
from trl_prorl.eval.analysis.sampled_scores import gain, largest_k, per_prompt, score
from trl_prorl.eval.analysis.statistics import Estimate, prompts_and_seeds
from trl_prorl.eval.analysis.timing import trained_in_parallel
from trl_prorl.eval.run_folder.run import GROUND, MODEL, RecordedRun
from trl_prorl.run.log_files import SIDES


MIN_STEPS = 3  # of a curve, and of a mean step time: the first steps of a run are slow


class Row:
    """
    A run of a report, with the numbers that several tables show; `None` if one was not measured.

    Step times are compared with those of the nearest `control` on the same ground; `own_control` also has the same
    seeds. Step times count as not measured if the run is not `timed`: if it trained in parallel with another one of
    the report.
    """

    def __init__(self, run: RecordedRun, timed: bool):
        self.run = run
        self.timed = timed
        self.base, self.trained = (score(run, side, 1) for side in SIDES)
        self.gain = gain(run.passk, 1) if run.passk else None
        resets = run.reset_steps()
        self.resets = None if resets is None else len(resets)
        self.reference_calls = run.total("ref_forward_calls")
        self.control: Row | None = None
        self.own_control: Row | None = None

    @cached_property
    def seconds(self) -> float | None:
        """
        Mean seconds of an optimizer step, with an equal share of all validation. These compare even if only some
        steps generate, or if a trigger needs evaluations that other runs do not have.
        """
        seconds = self.run.measured("time_step") if self.timed else None
        return None if seconds is None else float(seconds.mean()) + self.run.validation_seconds / len(seconds)

    @property
    def over_control(self) -> float | None:
        """Its step time / that of the control."""
        if self.control is None or not self.seconds or not self.control.seconds:
            return None
        steps = min(len(self.run.metrics), len(self.control.run.metrics))
        return None if steps < MIN_STEPS else self.seconds / self.control.seconds

    @property
    def throughput(self) -> float | None:
        """Completion tokens in the loss per second, counted in every pass."""
        speed = self.run.measured("tokens_per_second")
        seconds = self.run.measured("time_step")
        if not self.timed or speed is None or seconds is None:
            return None
        return float((speed * seconds).sum() / seconds.sum())

    @property
    def reference_share(self) -> float | None:
        """Share of the time that was spent scoring with the reference, in [0, 1]."""
        reference = self.run.stage_total("ref")
        step = self.run.total("time_step")
        return None if reference is None or not step else reference / step

    def stage_seconds(self, stage: str) -> float | None:
        """Return the mean seconds per step of one stage: `rollout`, `old`, `ref` or `update`."""
        seconds = self.run.stage_total(stage)
        return None if self.seconds is None or seconds is None else seconds / len(self.run.measured("time_step"))


@dataclass(frozen=True, eq=False)
class RunGroup:
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
    def legend(self) -> str:
        return self._with_seeds(len(self.rows))

    @property
    def evaluated_legend(self) -> str:
        """The legend for measurements on held-out prompts."""
        return self._with_seeds(len(self.evaluated))

    def _with_seeds(self, seeds: int) -> str:
        return self.full_label if seeds == 1 else f"{self.full_label}, {seeds} seeds"

    def series(self, key: str) -> list[pd.Series]:
        """Return one metric for each run that measured it."""
        return self.values(lambda row: row.run.measured(key))

    def values(self, measure: Callable[[Row], float | None]) -> list[float]:
        """Return a number for each run that has it."""
        values = [measure(row) for row in self.rows]
        return [value for value in values if value is not None]

    @cached_property
    def same_prompts(self) -> bool:
        return all(pairing_obstacle(self.evaluated[0], run) is None for run in self.evaluated)

    def estimate(self, values_of: Callable[[RecordedRun], np.ndarray], least: float = 0.0) -> Estimate | None:
        """Return a score with its interval over prompts and seeds; at each prompt its value is at least `least`."""
        return prompts_and_seeds([values_of(run) for run in self.evaluated], self.same_prompts, least)

    @cached_property
    def sides(self) -> dict[str, Estimate | None]:
        """Held-out pass@1 of the starting model and of the trained models."""
        return {side: self.estimate(lambda run, side=side: per_prompt(run.passk, side)) for side in SIDES}

    def gain(self) -> Estimate | None:
        return self.estimate(lambda run: per_prompt(run.passk, "trained") - per_prompt(run.passk, "base"), -1.0)

    def at_largest_k(self) -> Estimate | None:
        return self.estimate(lambda run: per_prompt(run.passk, "trained", largest_k(run)))


class Frame:
    """
    The runs of a report, sorted, each with its row of numbers; `groups` are the runs over seeds, in the same order.
    `parallel` are the runs that trained in parallel with another one.
    """

    def __init__(self, runs: list[RecordedRun]):
        self.runs = runs
        self.parallel = trained_in_parallel(runs)
        self.rows = [Row(run, timed=run not in self.parallel) for run in runs]
        for row in self.rows:
            controls = [other for other in self.rows if other.run.variant == "control"]
            controls = [control for control in controls if control.run.ground == row.run.ground]
            row.control = max(controls, key=lambda control, row=row: _agreement(row.run, control.run), default=None)
            if row.control and row.control.run.repetition == row.run.repetition:
                row.own_control = row.control
        row_of = {row.run: row for row in self.rows}
        grouped = repetitions(runs)
        labels = zip(group_labels(grouped), group_labels(grouped, with_variant=True), grouped, strict=True)
        counts = Counter()
        self.groups = []
        for label, full_label, group in labels:
            colour = group[0].kind.colour
            self.groups.append(RunGroup(label, full_label, [row_of[run] for run in group], counts[colour]))
            counts[colour] += 1

    @cached_property
    def grounds(self) -> dict[str, list[RunGroup]]:
        """The groups of every ground by its title: task and unusual settings; "" if there is only one ground."""
        usual = usual_values([group.runs[0] for group in self.groups])
        titles = {}
        grounds = {}
        for group in self.groups:
            run = group.runs[0]
            if run.ground not in titles:
                title = title_of_ground(run, usual)
                titles[run.ground] = title if title not in grounds else f"{title} ({len(grounds) + 1})"
            grounds.setdefault(titles[run.ground], []).append(group)
        return grounds


def _agreement(run: RecordedRun, control: RecordedRun) -> tuple[bool, bool]:
    """
    Return whether they agree in seeds of base and training, and in `beta`; the largest tuple is that of the nearest
    control.
    """
    same_beta = control.config.get("beta") == run.config.get("beta")
    return control.repetition == run.repetition, same_beta


def usual_values(runs: list[RecordedRun]) -> dict[str, str]:
    """Return the keys in which the grounds of runs differ, each with the `repr` of its most common value."""
    keys = [key for key in GROUND if len({repr(run.config.get(key) or None) for run in runs}) > 1]
    if len({run.base[0] for run in runs}) > 1 and TASK not in keys:
        keys.append(MODEL)
    return {key: Counter(repr(run.config.get(key)) for run in runs).most_common(1)[0][0] for key in keys}


def title_of_ground(run: RecordedRun, usual: dict[str, str]) -> str:
    """Return a run's task, if tasks differ, and its unusual settings."""
    words = []
    for key, usual_value in usual.items():
        value = run.config.get(key)
        if value and (key == TASK or repr(value) != usual_value):
            words.append(setting(key, value))
    return ", ".join(words)
