"""Read a run folder: its configuration, its record and, where there are any, its evaluations."""

import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING

from trl_prorl.errors import InputError
from trl_prorl.eval.run_folder.json_files import with_nan
from trl_prorl.record import run_files
from trl_prorl.record.run_id import RUN_ID, other_run


if TYPE_CHECKING:
    import pandas as pd

    from trl_prorl.eval.run_folder.run import Run


logger = logging.getLogger(__name__)
PASSK_FILE, DRIFT_FILE = "passk.json", "drift.json"
EVALUATIONS = {PASSK_FILE: run_files.passk, DRIFT_FILE: run_files.DRIFT}


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


def read_evaluation(
    run_dir: Path, file: str, env: dict, cure: str = "remove it, and evaluate this run"
) -> dict | None:
    """
    `passk.json` or `drift.json` of a run; `None` if there is none.

    Args:
        run_dir (`Path`): The run folder.
        file (`str`): Name of the file.
        env (`dict`): The run's `env.json`.
        cure (`str`, *optional*): What to do with an evaluation of another run.

    Raises:
        InputError: If it is not of this shape, or of another run, which had the folder before.
    """
    path = run_dir / file
    if not path.is_file():
        return None
    content = with_nan(run_files.read_json(path, EVALUATIONS[file]))
    if other_run(content, env.get(RUN_ID)):
        raise InputError(
            f"'{path}' is of another run, which had this folder before ({RUN_ID} {content[RUN_ID]}, by env.json "
            f"{env[RUN_ID]}); {cure}"
        )
    return content


def load_run(run_dir, name: str | None = None) -> "Run":
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
    import pandas as pd  # not for a folder that is not there

    from trl_prorl.eval.run_folder.run import Run

    run_dir = Path(run_dir)
    config = load_config(run_dir)
    for file in ("env.json", "metrics.jsonl"):
        if not (run_dir / file).is_file():
            raise InputError(
                f"'{run_dir / file}' is missing; give a run folder in which at least one step was recorded"
            )
    metrics = _read_rows(run_dir / "metrics.jsonl", unique="step")
    if metrics.empty:
        raise InputError(f"'{run_dir / 'metrics.jsonl'}' records no step; train the run first")
    metrics = metrics.sort_values("step", ignore_index=True)
    gaps = metrics["step"][metrics["step"].diff() > 1]
    if len(gaps):
        first, last = metrics["step"][gaps.index[0] - 1], gaps.iloc[0]
        logger.warning("%s: no row between step %d and step %d (gaps: %d).", run_dir, first, last, len(gaps))
    env, events, evaluations = read_env(run_dir), run_dir / "events.jsonl", run_dir / "evaluations.jsonl"
    return Run(
        path=run_dir,
        name=name or run_dir.resolve().name,
        config=config,
        env=env,
        metrics=metrics,
        events=pd.DataFrame(run_files.read_jsonl(events, run_files.EVENTS)) if events.is_file() else None,
        passk=read_evaluation(run_dir, PASSK_FILE, env),
        drift=read_evaluation(run_dir, DRIFT_FILE, env),
        evaluations=_read_rows(evaluations) if evaluations.is_file() else None,
    )


def _read_rows(path: Path, unique: str | None = None) -> "pd.DataFrame":
    """Rows of numbers; an infinite one, as fp16 leaves in `grad_norm`, counts as not measured."""
    import pandas as pd

    rows = pd.DataFrame(run_files.read_jsonl(path, run_files.METRICS, unique=unique))
    infinite = rows.isin([math.inf, -math.inf])
    if infinite.any(axis=None):
        keys = ", ".join(rows.columns[infinite.any()])
        logger.warning("%s: infinite values are left out: %s.", path, keys)
    return rows.mask(infinite)
