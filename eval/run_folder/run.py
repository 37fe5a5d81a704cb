"""A training run, as read from its folder."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from trl_prorl.cli.variants import VARIANTS, Variant, describe_missing_reset
from trl_prorl.errors import InputError
from trl_prorl.keys import LOWER_THE_REWARD
from trl_prorl.run.log_files import RESETS, RESUME, has_weights_of, step_of_evaluation
from trl_prorl.run.provenance import describe_evaluation
from trl_prorl.text import visible


UNKNOWN_COLOUR = "#7F7F7F"  # of an unknown variant
# TRL's defaults, for keys that a recipe does not set.
DEFAULT_TEMPERATURE = 1.0
DEFAULT_MAX_COMPLETION_LENGTH = 512
MODEL = "model_name_or_path"
OWN_KL = "kl"  # stands for the key of the KL to a run's own anchor
# Settings that define the problem of a run: variants are compared if they agree in these.
GROUND = ("task", "task_level", "task_options", "dataset_name", "max_steps", "learning_rate")
# `embedded` means `embedded:reverse_digits:0`; a base without a seed has seed 0.
_EMBEDDED = re.compile(r"embedded(?::(?P<task>[^:/]+)(?::(?P<seed>\d+))?)?")


def base_family(model: Any) -> tuple[Any, int | None]:
    """
    Return the base of a run without its seed, and the seed: `embedded:TASK` and SEED for `embedded:TASK:SEED`. Any
    other model is its own family, with an unknown seed.
    """
    match = _EMBEDDED.fullmatch(model) if isinstance(model, str) else None
    if match is None:
        return model, None
    return f"embedded:{match['task'] or 'reverse_digits'}", int(match["seed"] or 0)


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """
    One training run, as read from its folder.

    Attributes:
        path (`Path`): The run folder.
        name (`str`): Name of the run in tables and plots.
        config (`dict`): `config.yaml`; a missing key means the default.
        env (`dict`): `env.json`: variant, execution, seed, versions.
        metrics (`pd.DataFrame`): `metrics.jsonl`, one row per optimizer step, sorted by `step`. NaN or a missing
            column means not measured.
        events (`list[dict]` or `None`): `events.jsonl`, one object per event; `None` if there is no such file.
        passk (`dict` or `None`): `passk.json`; `None` if the run was not evaluated.
        drift (`dict` or `None`): `drift.json`, drift from the starting model over checkpoints; `None` if not measured.
        evaluations (`pd.DataFrame` or `None`): `evaluations.jsonl`, one row per evaluation during training; `None` if
            there is no such file.
    """

    path: Path
    name: str
    config: dict
    env: dict
    metrics: pd.DataFrame
    events: list[dict] | None
    passk: dict | None
    drift: dict | None = None
    evaluations: pd.DataFrame | None = None

    @property
    def variant(self) -> str:
        return visible(str(self.env.get("variant", "unknown")))

    @cached_property
    def kind(self) -> Variant:
        """Its variant, with labels and colour; an unknown one has its name as its label."""
        name = self.variant
        unknown = Variant(name, lambda args: False, name, "", anchor="–", recipe="", colour=UNKNOWN_COLOUR)
        return VARIANTS.get(name, unknown)

    @property
    def lowers_reward(self) -> bool:
        """Whether one of its keys lowers the reward, also of a policy that is no worse."""
        return any(self.config.get(key) for key in LOWER_THE_REWARD)

    @property
    def model(self) -> str | None:
        """Name of its starting model, from `env.json` or else the recipe."""
        return (self.env.get("base_model") or {}).get("name") or self.config.get(MODEL)

    @property
    def seed(self):
        return self.env.get("seed", self.config.get("seed"))

    @property
    def base(self) -> tuple[Any, int | None]:
        """Its starting model: the family, and the seed if it is an embedded model."""
        return base_family(self.config.get(MODEL) or self.model)

    @cached_property
    def ground(self) -> str:
        """The problem that it solves, without the seed of an embedded base."""
        return repr([self.base[0], *(self.config.get(key) or None for key in GROUND)])

    @property
    def repetition(self) -> tuple[int | None, str]:
        """Its seeds, which distinguish runs of a configuration: the seed of its base, and the training seed."""
        return self.base[1], str(self.seed)

    def measured(self, key: str) -> pd.Series | None:
        """
        Return the measured values of a metric, or of `OWN_KL`, indexed by step; `None` if it was never measured.
        """
        if key == OWN_KL:
            key = self.kind.kl
        rows = self.evaluations if key.startswith("eval_") else self.metrics
        if rows is None or key not in rows:
            return None
        values = pd.Series(rows[key].to_numpy(), index=rows["step"], name=key, dtype=float).dropna()
        return None if values.empty else values

    def total(self, key: str) -> float | None:
        """Return the sum of a metric over the steps; `None` if it was never measured."""
        values = self.measured(key)
        return None if values is None else float(values.sum())

    @property
    def validation_seconds(self) -> float:
        """Seconds of all evaluations during training."""
        if self.evaluations is None or "time_eval" not in self.evaluations:
            return 0.0
        return float(self.evaluations["time_eval"].sum())

    def event_steps(self, *events: str) -> list[int]:
        """Return the optimizer steps of some kinds of events, such as `growth`."""
        return [int(row["step_applied"]) for row in self.events or [] if row["event"] in events]

    def reset_steps(self) -> list[int] | None:
        """Return the optimizer steps at which a reset was applied; `None` without `events.jsonl`."""
        return None if self.events is None else self.event_steps(*RESETS)

    @cached_property
    def changes(self) -> dict[str, int]:
        """The keys that a resume changed, and the step from which the new value holds."""
        resumes = [row for row in self.events or [] if row["event"] == RESUME]
        return {key: int(row["step_applied"]) for row in resumes for key in row.get("changed") or {}}

    @property
    def last_step(self) -> int:
        return int(self.metrics["step"].max())

    @cached_property
    def has_old_scores(self) -> bool:
        """Whether its held-out scores are those of another step, or of other weights than those in the folder."""
        if self.passk is None:
            return False
        return (
            step_of_evaluation(self.passk) not in (None, self.last_step)
            or has_weights_of(self.passk, self.path) is False
        )

    @property
    def without_reset(self) -> str | None:
        """Words to print after the name of a run that should have resets and had none; `None` for other runs."""
        applied = self.reset_steps()
        resets = None if applied is None else len(applied)
        return describe_missing_reset(self.variant, self.config, resets, self.last_step)


def sort_runs(runs: list[RecordedRun]) -> list[RecordedRun]:
    """Sort runs in the order of the variants, unknown ones last; within a variant by name."""
    rank = {variant: position for position, variant in enumerate(VARIANTS)}
    return sorted(runs, key=lambda run: (rank.get(run.variant, len(rank)), run.name))


def require_passk(run: RecordedRun) -> dict:
    """
    Return the run's `passk.json`.

    Raises:
        InputError: If the run was not evaluated, with the command that evaluates it.
    """
    if run.passk is None:
        how = describe_evaluation(run.config, run.env, run.path)
        raise InputError(f"'{run.path / 'passk.json'}' is missing; make it with {how}")
    return run.passk
