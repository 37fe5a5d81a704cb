"""Find and read run folders: configuration, log files and evaluations."""

import glob
import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

from trl_prorl.errors import InputError, naming
from trl_prorl.run import log_files
from trl_prorl.run.files import check_contents, replace_text
from trl_prorl.run.folder import SET_ASIDE
from trl_prorl.run.log_files import read_content, read_log
from trl_prorl.text import visible


if TYPE_CHECKING:
    import pandas as pd

    from trl_prorl.eval.run_folder.run import RecordedRun


MAX_NUMBER = 1e100  # the square of a larger one may overflow


def write_json(path: Path, content: dict) -> None:
    """Write a JSON file atomically; NaN, which JSON lacks, becomes null."""
    replace_text(path, json.dumps(_without_nan(content)) + "\n")


def _without_nan(value):
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def with_nan(value):
    """Convert null, a missing end of an interval in JSON, to NaN."""
    if isinstance(value, dict):
        return {key: with_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [math.nan if item is None else with_nan(item) for item in value]
    return value


def load_config(run_dir) -> dict:
    """
    Return `config.yaml` of a run folder.

    Raises:
        InputError: If it is missing or no recipe, or a link leads out of the folder.
    """
    path = Path(run_dir) / log_files.CONFIG_FILE
    if not path.is_file():
        raise InputError(f"'{run_dir}' is no run folder (no {log_files.CONFIG_FILE}); give the output_dir of a run")
    check_contents(run_dir)
    return read_content(path)


def read_env(run_dir: Path) -> dict:
    """Return `env.json` of a run folder; empty if there is none."""
    path = Path(run_dir) / log_files.ENV_FILE
    return read_content(path) if path.is_file() else {}


def read_evaluation(run_dir: Path, file: str) -> dict | None:
    """Return `passk.json` or `drift.json` of a run; `None` if there is none."""
    path = run_dir / file
    return with_nan(read_content(path)) if path.is_file() else None


def load_run(run_dir, name: str | None = None) -> "RecordedRun":
    """
    Read a run folder, which needs `config.yaml` and a non-empty `metrics.jsonl`. By default the run has the name of
    the folder.

    Raises:
        InputError: If a file is missing or unreadable.
    """
    from trl_prorl.eval.run_folder.run import RecordedRun  # imports pandas; not for a folder that is not there

    run_dir = Path(run_dir)
    config = load_config(run_dir)
    metrics = _read_rows(run_dir, log_files.METRICS_FILE)
    if "step" not in metrics:
        raise InputError(f"'{run_dir / log_files.METRICS_FILE}' has no step; train the run first")
    events = run_dir / log_files.EVENTS_FILE
    evaluations = _read_rows(run_dir, log_files.EVALUATIONS_FILE)
    return RecordedRun(
        path=run_dir,
        name=visible(name or run_dir.resolve().name),
        config=config,
        env=read_env(run_dir),
        metrics=metrics.sort_values("step", ignore_index=True),
        events=read_log(run_dir, log_files.EVENTS_FILE) if events.is_file() else None,
        passk=read_evaluation(run_dir, log_files.PASSK_FILE),
        drift=read_evaluation(run_dir, log_files.DRIFT_FILE),
        evaluations=None if evaluations.empty else evaluations,
    )


def _read_rows(run_dir: Path, file: str) -> "pd.DataFrame":
    """Return rows of numbers; infinite and huge ones, as fp16 leaves in `grad_norm`, count as not measured."""
    import pandas as pd

    rows = pd.DataFrame(read_log(run_dir, file))
    numbers = rows.select_dtypes("number")
    return rows.assign(**numbers.mask(numbers.abs() > MAX_NUMBER))


def find_runs(patterns: list[str]) -> list[Path]:
    """
    Find run folders among paths and glob patterns, each once, in the given order. Any other folder stands for the runs
    below it, at any depth, without those that were set aside when another run took their folder.

    Raises:
        InputError: If there is none.
    """
    runs = {}
    other_trainers = False
    for pattern in patterns:
        for match in [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern)):
            for path, folders, files in os.walk(match):
                is_run = log_files.CONFIG_FILE in files
                if is_run and (path == match or SET_ASIDE not in files):
                    runs.setdefault(Path(path).resolve(), Path(path))
                # Subfolders of a run folder belong to the run.
                folders[:] = [] if is_run else sorted(name for name in folders if not name.startswith("."))
                if not is_run and "trainer_state.json" in files:
                    other_trainers = True
    if not runs:
        cure = ". A run of TRL's trainer needs callbacks=[RunRecorder()]" if other_trainers else ""
        raise InputError(f"no run folder is in {' '.join(patterns)}: one has {log_files.CONFIG_FILE}{cure}")
    return list(runs.values())


def load_runs(folders: list[Path]) -> "tuple[list[RecordedRun], list[str]]":
    """
    Read the runs of a report or comparison, each named by its path below the folder that they share; and return a line
    for each that is left out because it cannot be read.

    Raises:
        InputError: If no run can be read.
    """
    shared = os.path.commonpath([folder.resolve().parent for folder in folders])
    runs = []
    left_out = []
    for folder in folders:
        try:
            with naming(folder):
                runs.append(load_run(folder, os.path.relpath(folder.resolve(), shared)))
        except InputError as error:
            left_out.append(f"{folder} is left out: {error}.")
    if not runs:
        raise InputError(f"no run can be read: {' '.join(left_out)}")
    return runs, left_out
