"""A training run as its folder records it."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from trl_prorl.errors import InputError
from trl_prorl.record.provenance import describe_evaluation
from trl_prorl.text import visible
from trl_prorl.variants import VARIANTS, describe_missing_reset


# TRL's own defaults, for the keys a recipe leaves out.
DEFAULT_TEMPERATURE = 1.0
DEFAULT_MAX_COMPLETION_LENGTH = 512
# The counter of each stage in metrics.jsonl: it tells a stage that did not run from one that was not timed.
STAGE_COUNTERS = {
    "rollout": "tokens_generated",
    "old": "old_forward_calls",
    "ref": "ref_forward_calls",
    "update": "policy_forward_calls",
}


MODEL = "model_name_or_path"
# Settings that pose the problem that a run solves: arms are compared where they agree in these.
GROUND = ("task", "task_level", "task_options", "dataset_name", "max_steps", "learning_rate")
# `embedded` alone is `embedded:reverse_digits:0`; a base without a seed is that of seed 0.
_EMBEDDED = re.compile(r"embedded(?::(?P<task>[^:/]+)(?::(?P<seed>\d+))?)?")


def base_family(model: Any) -> tuple[Any, int | None]:
    """
    Return the base of a run without its seed, and the seed: `embedded:TASK` and SEED of `embedded:TASK:SEED`. Any
    other model is its own family and has no seed that is known.
    """
    match = _EMBEDDED.fullmatch(model) if isinstance(model, str) else None
    if match is None:
        return model, None
    return f"embedded:{match['task'] or 'reverse_digits'}", int(match["seed"] or 0)


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """
    One training run as its folder records it.

    Attributes:
        path (`Path`): The run folder.
        name (`str`): Name of the arm in tables and figures.
        config (`dict`): `config.yaml`; a missing key means the default.
        env (`dict`): `env.json`: variant, execution, seed, versions.
        metrics (`pd.DataFrame`): `metrics.jsonl`, one row per optimizer step, sorted by `step`. NaN or a missing
            column means not measured.
        events (`pd.DataFrame` or `None`): `events.jsonl`, one row per event; `None` if there is no such file.
        passk (`dict` or `None`): `passk.json`; `None` if the run was not evaluated.
        drift (`dict` or `None`): `drift.json`, the distance from base over checkpoints; `None` if it was not measured.
        evaluations (`pd.DataFrame` or `None`): `evaluations.jsonl`, one row per evaluation during training; `None` if
            there is no such file.
    """

    path: Path
    name: str
    config: dict
    env: dict
    metrics: pd.DataFrame
    events: pd.DataFrame | None
    passk: dict | None
    drift: dict | None = None
    evaluations: pd.DataFrame | None = None

    @property
    def variant(self) -> str:
        return visible(str(self.env.get("variant", "unknown")))

    @property
    def can_be_evaluated(self) -> bool:
        """Whether `eval.passk` finds the task in `config.yaml`; a script's run has none, and needs a plugin."""
        return bool(self.config.get("task"))

    @property
    def model(self) -> str | None:
        """Name of the model that it began from, as `env.json` or else the recipe has it."""
        return (self.env.get("base_model") or {}).get("name") or self.config.get(MODEL)

    @property
    def seed(self):
        return self.env.get("seed", self.config.get("seed"))

    @property
    def base(self) -> tuple[Any, int | None]:
        """The model that it began from: its family, and its seed where it is an embedded one."""
        return base_family(self.config.get(MODEL) or self.model)

    @cached_property
    def ground(self) -> str:
        """The problem that it solves, the seed of an embedded base aside."""
        return repr([self.base[0], *(self.config.get(key) or None for key in GROUND)])

    @property
    def repetition(self) -> tuple[int | None, str]:
        """What tells it from other runs of its configuration: the seed of its base, and the training seed."""
        return self.base[1], str(self.seed)

    @cached_property
    def _series(self) -> dict[str, pd.Series | None]:
        return {}

    def measured(self, key: str) -> pd.Series | None:
        """Values of one metric at the steps where it was measured, indexed by step; `None` if it never was."""
        if key not in self._series:
            rows = self.evaluations if key.startswith("eval_") else self.metrics
            values = None
            if rows is not None and key in rows:
                values = pd.Series(rows[key].to_numpy(), index=rows["step"], name=key, dtype=float).dropna()
            self._series[key] = None if values is None or values.empty else values
        return self._series[key]

    def total(self, key: str) -> float | None:
        """Sum of one metric over the steps; `None` if it was never measured."""
        values = self.measured(key)
        return None if values is None else float(values.sum())

    def stage_total(self, stage: str) -> float | None:
        """
        Return the seconds of one stage (`rollout`, `old`, `ref`, `update`) over the whole run; `None` if it was not
        timed.

        A stage leaves no time in a step that never entered it, so a run that timed no such stage at all but counted 0
        of its calls spent 0 seconds there.
        """
        seconds = self.total(f"time_{stage}")
        if seconds is None and self.total(STAGE_COUNTERS[stage]) == 0:
            return 0.0
        return seconds

    @cached_property
    def _events(self) -> list[tuple[str, int, str]]:
        """Event, step and reason of each line of the record of events; `""` where no reason is."""
        if self.events is None or self.events.empty:
            return []
        reasons = self.events["reason"] if "reason" in self.events else [""] * len(self.events)
        return [
            (event, int(step), reason if isinstance(reason, str) else "")
            for event, step, reason in zip(self.events["event"], self.events["step_applied"], reasons, strict=True)
        ]

    def reset_reasons(self) -> list[tuple[int, str]]:
        """Step and reason of each reset, as recorded: `periodic`, `kl_spike+stall`; `""` where none is."""
        return [(step, reason) for event, step, reason in self._events if "reset" in event]

    def reset_steps(self) -> list[int] | None:
        """Optimizer steps at which a reset was applied; `None` if the run kept no record of events."""
        return None if self.events is None else [step for step, _ in self.reset_reasons()]

    def event_steps(self, event: str) -> list[int]:
        """Optimizer steps at which something else than a reset happened: `growth`, `guard_gap`."""
        return [step for found, step, _ in self._events if found == event]

    @property
    def without_reset(self) -> str | None:
        """What to say after the name of a run that resets should set apart, and that had none; `None` otherwise."""
        applied = self.reset_steps()
        steps = None if self.metrics.empty else int(self.metrics["step"].max())
        return describe_missing_reset(self.variant, self.config, None if applied is None else len(applied), steps)


def sort_runs(runs: list[RecordedRun]) -> list[RecordedRun]:
    """Runs in the order of the variants, those of an unknown one last; within a variant by name."""
    rank = {variant: position for position, variant in enumerate(VARIANTS)}
    return sorted(runs, key=lambda run: (rank.get(run.variant, len(rank)), run.name))


def require_passk(run: RecordedRun) -> dict:
    """
    Return the run's `passk.json`.

    Raises:
        InputError: If the run was not evaluated, naming the command that does it.
    """
    if run.passk is None:
        raise InputError(
            f"'{run.path / 'passk.json'}' is missing; {describe_evaluation(run.config, run.env, run.path)} makes it"
        )
    return run.passk
