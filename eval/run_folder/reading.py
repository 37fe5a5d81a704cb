"""Run folders: found as the command line names them, and read: configuration, record and evaluations."""

import argparse
import glob
import json
import logging
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

from trl_prorl.errors import InputError
from trl_prorl.files import replaced
from trl_prorl.record import run_files
from trl_prorl.record.run_id import RUN_ID, is_of_other_run
from trl_prorl.record.shapes import LARGEST


if TYPE_CHECKING:
    import pandas as pd

    from trl_prorl.eval.run_folder.run import RecordedRun


logger = logging.getLogger(__name__)
PASSK_FILE = "passk.json"
DRIFT_FILE = "drift.json"
EVALUATIONS = {PASSK_FILE: run_files.passk, DRIFT_FILE: run_files.DRIFT}


def write_json(path: Path, content: dict) -> None:
    """Write a JSON file, whole or not at all; NaN, which JSON does not know, as null."""
    with replaced(path) as aside:
        aside.write_text(json.dumps(_without_nan(content)) + "\n")


def _without_nan(value):
    if isinstance(value, dict):
        return {key: _without_nan(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def with_nan(value):
    """An end of an interval that was not given is null in JSON and NaN here."""
    if isinstance(value, dict):
        return {key: with_nan(one) for key, one in value.items()}
    if isinstance(value, list):
        return [math.nan if one is None else with_nan(one) for one in value]
    return value


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
    `passk.json` or `drift.json` of a run, whose `env.json` is given; `None` if there is none.

    Raises:
        InputError: If it is not of this shape, or of another run, which had the folder before; with the `cure` for
            that.
    """
    path = run_dir / file
    if not path.is_file():
        return None
    content = with_nan(run_files.read_json(path, EVALUATIONS[file]))
    if is_of_other_run(content, env.get(RUN_ID)):
        raise InputError(
            f"'{path}' is of another run, which had this folder before ({RUN_ID} {content[RUN_ID]}, by env.json "
            f"{env[RUN_ID]}); {cure}"
        )
    return content


def load_run(run_dir, name: str | None = None) -> "RecordedRun":
    """
    Read a run folder, which needs `config.yaml`, `env.json` and a non-empty `metrics.jsonl`; its arm has the
    folder's name by default.

    Raises:
        InputError: If a file is missing or unreadable.
    """
    import pandas as pd  # not for a folder that is not there

    from trl_prorl.eval.run_folder.run import RecordedRun

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
        first = metrics["step"][gaps.index[0] - 1]
        last = gaps.iloc[0]
        logger.warning("%s: no row between step %d and step %d (gaps: %d).", run_dir, first, last, len(gaps))
    env = read_env(run_dir)
    events = run_dir / "events.jsonl"
    evaluations = run_dir / "evaluations.jsonl"
    return RecordedRun(
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


def _plain_rows(path: Path) -> "pd.DataFrame | None":
    """
    Rows of a record without fault: a finite number under every key, another step in every line. `None` of any other,
    which is read line by line. The whole file at once takes half the time.
    """
    import numpy as np
    from pyarrow import ArrowException, BufferReader, json

    try:
        content = path.read_bytes()
        lines = content.count(b"\n")
        # Flat objects alone: Arrow ends the process at a document that is nested too deeply.
        if not content.isascii() or b"[" in content or not content.count(b"{") == content.count(b"}") == lines > 0:
            return None
        options = json.ReadOptions(use_threads=False, block_size=1 << 26)
        rows = json.read_json(BufferReader(content), options).to_pandas()
    except (ArrowException, OSError):
        return None
    all_numbers = set(map(str, rows.dtypes)) <= {"float64", "int64", "bool"}
    if len(rows) != lines or not all_numbers or "step" not in rows:
        return None
    steps = rows["step"]
    if steps.dtype != "int64" or not steps.is_unique or steps.min() < 0:
        return None
    largest = np.nanmax(np.abs(rows.to_numpy(float)))
    return rows if largest < LARGEST else None


def _read_rows(path: Path, unique: str | None = None) -> "pd.DataFrame":
    """Rows of numbers; an infinite one, as fp16 leaves in `grad_norm`, counts as not measured."""
    import pandas as pd

    plain = _plain_rows(path)
    if plain is not None:
        return plain
    rows = pd.DataFrame(run_files.read_jsonl(path, run_files.METRICS, unique=unique))
    infinite = rows.select_dtypes("number").abs() == math.inf
    if infinite.any(axis=None):
        keys = list(infinite.columns[infinite.any()])
        logger.warning("%s: infinite values are left out: %s.", path, ", ".join(keys))
        rows[keys] = rows[keys].mask(infinite[keys])
    return rows


def add_run_option(
    parser: argparse.ArgumentParser, help: str = "run folders; may be repeated", type: type = Path
) -> None:
    """
    `--run RUN`, which may be repeated, or `--runs RUN RUN`: either spelling takes one or several, in `args.runs`.
    """
    parser.add_argument(
        "--run", "--runs", dest="runs", metavar="RUN", action="extend", nargs="+", required=True, type=type, help=help
    )


def find_run_folders(patterns: list[str | Path], named: bool = False) -> list[Path]:
    """
    Find the run folders among paths and glob patterns, each once, in the given order.

    A shell's `runs/demo/*` also names files and other folders, an earlier report for one; they are left out, unless
    `named` says that a folder that is named outright has to be a run's.

    Raises:
        InputError: If a path does not exist, a pattern matches nothing, or no run folder remains.
    """
    found = {}
    for pattern in map(str, patterns):
        matches = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern))
        if not matches and glob.has_magic(pattern):
            raise InputError(f"--runs '{pattern}' matches nothing; give run folders or a glob of them")
        if not matches or (named and matches == [pattern] and os.path.isdir(pattern)):
            load_config(pattern)
            found.setdefault(Path(pattern).resolve(), Path(pattern))
        for match in matches:
            if (Path(match) / "metrics.jsonl").is_file():
                found.setdefault(Path(match).resolve(), Path(match))
    if not found:
        raise InputError(
            f"--runs {' '.join(patterns)}: no run folder among them; a run folder holds config.yaml, env.json and "
            "metrics.jsonl"
        )
    return list(found.values())


def common_parent(folders: list[Path]) -> Path:
    """Return the deepest folder that holds all run folders."""
    return Path(os.path.commonpath([folder.resolve().parent for folder in folders]))


def only_parent(folders: list[Path]) -> Path:
    """
    Return the folder in which all run folders lie.

    Raises:
        InputError: If there are several; what they have in common may be anybody's home, or `/`.
    """
    parents = list(dict.fromkeys(folder.resolve().parent for folder in folders))
    if len(parents) > 1:
        raise InputError(
            f"--out is missing: the runs lie in {len(parents)} folders ('{parents[0]}', '{parents[1]}'"
            f"{', …' if len(parents) > 2 else ''}); give the folder that the report goes to"
        )
    return parents[0]


def load_runs(folders: list[Path]) -> "list[RecordedRun]":
    """Read the runs in the order of the report, each named by its path below the common parent."""
    from trl_prorl.eval.run_folder.run import sort_runs  # pandas

    parent = common_parent(folders)
    return sort_runs([load_run(folder, folder.resolve().relative_to(parent).as_posix()) for folder in folders])
