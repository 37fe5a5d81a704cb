"""Read a run folder: its configuration, its record and, where there is one, its held-out evaluation."""

import math
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from trl_prorl import run_files
from trl_prorl.errors import InputError
from trl_prorl.record import EVALUATION_KEYS
from trl_prorl.run_id import RUN_ID, other_run


EVALUATIONS = {"passk.json": run_files.passk, "drift.json": run_files.DRIFT}
VARIANTS = ("plain", "control", "A", "B", "C")
# The counter of each stage in metrics.jsonl: it tells a stage that did not run from one that was not timed.
STAGE_COUNTERS = {
    "rollout": "tokens_generated",
    "old": "old_forward_calls",
    "ref": "ref_forward_calls",
    "update": "policy_forward_calls",
}


@dataclass(frozen=True)
class Run:
    """
    One training run as its folder records it.

    Attributes:
        path (`Path`): The run folder.
        name (`str`): Name of the arm in tables and figures.
        config (`dict`): `config.yaml`; a missing key means the default.
        env (`dict`): `env.json`: variant, execution, seed, versions.
        metrics (`pd.DataFrame`): `metrics.jsonl`, one row per optimizer step, sorted by `step`. NaN or a missing column
            means not measured.
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
        return str(self.env.get("variant", "unknown"))

    @property
    def can_be_evaluated(self) -> bool:
        """Whether `eval.passk` finds model and task in `config.yaml`."""
        return all(self.config.get(key) for key in EVALUATION_KEYS)

    @property
    def seed(self):
        return self.env.get("seed", self.config.get("seed"))

    def measured(self, key: str) -> pd.Series | None:
        """Values of one metric at the steps where it was measured, indexed by step; `None` if it never was."""
        rows = self.evaluations if key.startswith("eval_") else self.metrics
        if rows is None or key not in rows:
            return None
        values = pd.to_numeric(rows.set_index("step")[key], errors="coerce").dropna()
        return None if values.empty else values

    def total(self, key: str) -> float | None:
        """Sum of one metric over the steps; `None` if it was never measured."""
        values = self.measured(key)
        return None if values is None else float(values.sum())

    def stage_total(self, stage: str) -> float | None:
        """
        Seconds of one stage (`rollout`, `old`, `ref`, `update`) over the whole run; `None` if it was not timed.

        A stage leaves no time in a step that never entered it, so a run that timed no such stage at all but counted 0
        of its calls spent 0 seconds there.
        """
        seconds = self.total(f"time_{stage}")
        if seconds is None and self.total(STAGE_COUNTERS[stage]) == 0:
            return 0.0
        return seconds

    def reset_steps(self) -> list[int] | None:
        """Optimizer steps at which a reset was applied; `None` if the run kept no record of events."""
        if self.events is None:
            return None
        if self.events.empty:
            return []
        # The same file also records growth and resumes.
        resets = self.events[self.events["event"].str.contains("reset")]
        return [int(step) for step in resets["step_applied"]]


def load_config(run_dir) -> dict:
    """
    `config.yaml` of a run folder.

    Raises:
        InputError: If the folder or the file is missing, or the file is no recipe.
    """
    run_dir = Path(run_dir)
    if not run_dir.is_dir():
        raise InputError(f"run folder '{run_dir}' does not exist; give the folder a training run wrote")
    path = run_dir / "config.yaml"
    if not path.is_file():
        raise InputError(f"'{path}' is missing; give a run folder, or copy the recipe the run was started with there")
    return run_files.read_yaml(path)


def read_env(run_dir: Path) -> dict:
    """
    `env.json` of a run folder; empty if there is none.

    Raises:
        InputError: If it is not of this shape.
    """
    path = Path(run_dir) / "env.json"
    return run_files.read_json(path, run_files.ENV) if path.is_file() else {}


def with_nan(value):
    """An end of an interval that was not given is null in JSON and NaN here."""
    if isinstance(value, dict):
        return {key: with_nan(one) for key, one in value.items()}
    return [math.nan if one is None else with_nan(one) for one in value] if isinstance(value, list) else value


def read_evaluation(run_dir: Path, file: str, env: dict) -> dict | None:
    """
    `passk.json` or `drift.json` of a run; `None` if there is none.

    Raises:
        InputError: If it is not of this shape, or of another run, which had the folder before.
    """
    path = run_dir / file
    if not path.is_file():
        return None
    content = with_nan(run_files.read_json(path, EVALUATIONS[file]))
    if other_run(content, env.get(RUN_ID)):
        raise InputError(
            f"'{path}' is of another run, which had this folder before ({RUN_ID} {content[RUN_ID]}, by env.json {env[RUN_ID]}); "
            "remove it, and evaluate this run"
        )
    return content


def load_run(run_dir, name: str | None = None) -> Run:
    """
    Read a run folder.

    Args:
        run_dir (`str` or `Path`): The folder; it needs `config.yaml`, `env.json` and a non-empty `metrics.jsonl`.
        name (`str`, *optional*): Name of the arm; the folder's name by default.

    Returns:
        [`Run`]

    Raises:
        InputError: If a file is missing or unreadable.
    """
    run_dir = Path(run_dir)
    config = load_config(run_dir)
    for file in ("env.json", "metrics.jsonl"):
        if not (run_dir / file).is_file():
            raise InputError(
                f"'{run_dir / file}' is missing; give a run folder in which at least one step was recorded"
            )
    metrics = pd.DataFrame(run_files.read_jsonl(run_dir / "metrics.jsonl", run_files.METRICS, unique="step"))
    if metrics.empty:
        raise InputError(f"'{run_dir / 'metrics.jsonl'}' records no step; train the run first")
    env, events, evaluations = read_env(run_dir), run_dir / "events.jsonl", run_dir / "evaluations.jsonl"
    return Run(
        path=run_dir,
        name=name or run_dir.resolve().name,
        config=config,
        env=env,
        metrics=metrics.sort_values("step", ignore_index=True),
        events=pd.DataFrame(run_files.read_jsonl(events, run_files.EVENTS)) if events.is_file() else None,
        passk=read_evaluation(run_dir, "passk.json", env),
        drift=read_evaluation(run_dir, "drift.json", env),
        evaluations=pd.DataFrame(run_files.read_jsonl(evaluations, run_files.METRICS))
        if evaluations.is_file()
        else None,
    )


def sort_runs(runs: list[Run]) -> list[Run]:
    """Runs in the order plain, control, A, B, C, then the rest; within a variant by name."""
    rank = {variant: position for position, variant in enumerate(VARIANTS)}
    return sorted(runs, key=lambda run: (rank.get(run.variant, len(rank)), run.name))


def require_passk(run: Run) -> dict:
    """
    The run's `passk.json`.

    Raises:
        InputError: If the run was not evaluated, naming the command that does it.
    """
    if run.passk is None:
        raise InputError(f"'{run.path / 'passk.json'}' is missing; run `python -m eval.passk --run {run.path}`")
    return run.passk
