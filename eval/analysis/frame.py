"""The runs of a report, grouped by variant over seeds, and the numbers that several tables show."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from trl_prorl.eval.analysis.configurations import (
    differing_keys,
    group_labels,
    pairing_obstacle,
    repetitions,
    setting,
    value_of,
)
from trl_prorl.eval.analysis.sampled_scores import largest_k, per_prompt
from trl_prorl.eval.analysis.statistics import Estimate, prompts_and_seeds
from trl_prorl.eval.run_folder.run import GROUND, MODEL, RecordedRun
from trl_prorl.run.log_files import SIDES


class Row:
    """
    A run of a report, with the numbers that several tables show; `None` if one was not measured.

    Step times are compared with those of the nearest `control` on the same ground; `own_control` also has the same
    seeds.
    """

    def __init__(self, run: RecordedRun, controls: list[RecordedRun]):
        self.run = run
        resets = run.reset_steps()
        self.resets = None if resets is None else len(resets)
        self.reference_calls = run.total("ref_forward_calls")
        self.seconds = mean_seconds(run)
        same = [control for control in controls if control.ground == run.ground]
        self.own_control = next((control for control in same if control.repetition == run.repetition), None)
        self.control = self.own_control or next(iter(same), None)

    @property
    def over_control(self) -> float | None:
        """Its step time / that of the control."""
        control = None if self.control is None else mean_seconds(self.control)
        return self.seconds / control if self.seconds and control else None

    @property
    def throughput(self) -> float | None:
        """Completion tokens in the loss per second, counted in every pass."""
        speed = self.run.measured("tokens_per_second")
        seconds = self.run.measured("time_step")
        return None if speed is None or seconds is None else float((speed * seconds).sum() / seconds.sum())

    @property
    def reference_share(self) -> float | None:
        """Share of the time that was spent scoring with the reference, in [0, 1]."""
        reference = 0.0 if self.reference_calls == 0 else self.run.total("time_ref")
        step = self.run.total("time_step")
        return None if reference is None or not step else reference / step


def mean_seconds(run: RecordedRun) -> float | None:
    """Return the mean seconds of an optimizer step, with an equal share of all validation."""
    seconds = run.measured("time_step")
    return None if seconds is None else float(seconds.mean()) + run.validation_seconds / len(seconds)


@dataclass(frozen=True, eq=False)
class RunGroup:
    """
    Runs that differ only in seeds, under a label that is unique in the report. `place` is its position among those of
    its colour.
    """

    label: str
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
        return self.label if len(self.rows) == 1 else f"{self.label}, {len(self.rows)} seeds"

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
    """The runs of a report, each with its row of numbers; `groups` are the runs over seeds, in the same order."""

    def __init__(self, runs: list[RecordedRun]):
        self.runs = runs
        controls = [run for run in runs if run.variant == "control"]
        row_of = {run: Row(run, controls) for run in runs}
        self.rows = list(row_of.values())
        grouped = repetitions(runs)
        counts = Counter()
        self.groups = []
        for label, group in zip(group_labels(grouped), grouped, strict=True):
            colour = group[0].kind.colour
            self.groups.append(RunGroup(label, [row_of[run] for run in group], counts[colour]))
            counts[colour] += 1

    @cached_property
    def grounds(self) -> dict[str, list[RunGroup]]:
        """The groups of every ground by its title: the settings in which grounds differ; "" if there is only one."""
        first = [group.runs[0] for group in self.groups]
        keys = [key for key in differing_keys(first) if key in (MODEL, *GROUND)]
        titles = {}
        for run in first:
            words = [setting(key, value_of(run, key)) for key in keys if value_of(run, key) is not None]
            title = ", ".join(words)
            if title in titles.values():  # models of the same name in two folders
                title += f" ({len(titles) + 1})"
            titles.setdefault(run.ground, title)
        grounds = {}
        for group, run in zip(self.groups, first, strict=True):
            grounds.setdefault(titles[run.ground], []).append(group)
        return grounds
