"""Find and read run folders: configuration, log files and evaluations."""

import argparse
import glob
import json
import logging
import math
import os
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trl_prorl.errors import InputError, naming
from trl_prorl.run import log_files
from trl_prorl.run.files import check_contents, replace_text
from trl_prorl.run.folder import SET_ASIDE, exclusive
from trl_prorl.run.log_files import DRIFT_FILE, PASSK_FILE, read_content, read_log
from trl_prorl.text import cut, visible


if TYPE_CHECKING:
    import pandas as pd

    from trl_prorl.eval.run_folder.run import RecordedRun


logger = logging.getLogger(__name__)
MAX_NUMBER = 1e100  # the square of a larger one may overflow
MAX_COLUMNS = 2000  # of a table of rows; a run with many rewards has some 200
MAX_CELLS = 10**8
MAX_REASONS = 3  # in one sentence
PLAIN_RUN = (
    "it is a run of another trainer, without the log files of ProRLTrainer. For an identical run with log files, "
    "replace TRL's GRPOTrainer and GRPOConfig by ProRLTrainer and ProRLConfig(fast=False)"
)


def write_json(path: Path, content: dict) -> None:
    """Write a JSON file atomically; NaN, which JSON lacks, becomes null."""
    replace_text(path, json.dumps(_without_nan(content)) + "\n")


def writing(path: Path) -> AbstractContextManager[None]:
    """Keep other commands from writing the same evaluation inside a context; wait for one that is writing it."""
    return exclusive(path, visible(f"{path}: another command is writing it; waiting for it to finish."))


def _without_nan(value):
    if isinstance(value, dict):
        return {key: _without_nan(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def with_nan(value):
    """Convert null, a missing end of an interval in JSON, to NaN."""
    if isinstance(value, dict):
        return {key: with_nan(one) for key, one in value.items()}
    if isinstance(value, list):
        return [math.nan if one is None else with_nan(one) for one in value]
    return value


def load_config(run_dir) -> dict:
    """
    Return `config.yaml` of a run folder.

    Raises:
        InputError: If the folder or the file is missing, the file is no recipe, or a link leads out of the folder.
    """
    run_dir = Path(run_dir)
    if not run_dir.is_dir():
        raise InputError(f"run folder '{run_dir}' does not exist; give the output_dir of a run")
    path = run_dir / "config.yaml"
    if not path.is_file() and is_plain_run(run_dir):
        raise InputError(f"'{path}' is missing: {PLAIN_RUN}")
    if not path.is_file():
        runs = [str(run) for run in _runs_below(run_dir) if run != run_dir]
        if runs:
            shown = ", ".join([*runs[:MAX_REASONS], "…"] if len(runs) > MAX_REASONS else runs)
            raise InputError(f"'{run_dir}' is not a run folder (no config.yaml); give runs in it: {shown}")
        raise InputError(f"'{path}' is missing; give a run folder, or copy the recipe of the run there")
    check_contents(run_dir)
    return read_content(path)


def is_plain_run(folder: Path) -> bool:
    """Return whether a folder has the files of a transformers trainer, but not those of ours."""
    written = [folder / "training_args.bin", *folder.glob("checkpoint-*/trainer_state.json")]
    return any(path.is_file() for path in written) and not (folder / log_files.METRICS_FILE).is_file()


def read_env(run_dir: Path) -> dict:
    """
    Return `env.json` of a run folder; empty if there is none.

    Raises:
        InputError: If it is not JSON, or has another shape.
    """
    path = Path(run_dir) / log_files.ENV_FILE
    return read_content(path) if path.is_file() else {}


def read_evaluation(run_dir: Path, file: str) -> dict | None:
    """
    Return `passk.json` or `drift.json` of a run; `None` if there is none.

    Raises:
        InputError: If it is not JSON, or has another shape.
    """
    path = run_dir / file
    if not path.is_file():
        return None
    return with_nan(read_content(path))


def load_run(run_dir, name: str | None = None) -> "RecordedRun":
    """
    Read a run folder, which needs `config.yaml`, `env.json` and a non-empty `metrics.jsonl`. By default the run has
    the name of the folder.

    Raises:
        InputError: If a file is missing or unreadable.
    """
    # Imports pandas; not for a folder that is not there.
    from trl_prorl.eval.run_folder.run import RecordedRun

    run_dir = Path(run_dir)
    config = load_config(run_dir)
    for file in (log_files.ENV_FILE, log_files.METRICS_FILE):
        if not (run_dir / file).is_file():
            raise InputError(
                f"'{run_dir / file}' is missing; give the folder of a run that was trained for at least one step"
            )
    metrics = _read_rows(run_dir, log_files.METRICS_FILE)
    if metrics.empty:
        raise InputError(f"'{run_dir / log_files.METRICS_FILE}' has no step; train the run first")
    metrics = metrics.sort_values("step", ignore_index=True)
    twice = metrics["step"][metrics["step"].duplicated()]
    if len(twice):
        path = run_dir / log_files.METRICS_FILE
        raise InputError(f"'{path}' has step {twice.iloc[0]} twice; remove one of the two lines")
    gaps = metrics["step"][metrics["step"].diff() > 1]
    if len(gaps):
        first = metrics["step"][gaps.index[0] - 1]
        last = gaps.iloc[0]
        logger.warning(
            "%s: no row between step %d and step %d (gaps: %d).", visible(str(run_dir)), first, last, len(gaps)
        )
    events = run_dir / log_files.EVENTS_FILE
    evaluations = run_dir / log_files.EVALUATIONS_FILE
    return RecordedRun(
        path=run_dir,
        name=visible(name or run_dir.resolve().name),
        config=config,
        env=read_env(run_dir),
        metrics=metrics,
        events=read_log(run_dir, log_files.EVENTS_FILE) if events.is_file() else None,
        passk=read_evaluation(run_dir, PASSK_FILE),
        drift=read_evaluation(run_dir, DRIFT_FILE),
        evaluations=_read_rows(run_dir, log_files.EVALUATIONS_FILE) if evaluations.is_file() else None,
    )


def _read_rows(run_dir: Path, file: str) -> "pd.DataFrame":
    """Return rows of numbers; infinite and huge ones, as fp16 leaves in `grad_norm`, count as not measured."""
    import pandas as pd

    lines = read_log(run_dir, file)
    columns = len({key for row in lines for key in row})
    if columns > MAX_COLUMNS or columns * len(lines) > MAX_CELLS:
        raise InputError(
            f"'{run_dir / file}' has {columns:,} different keys in {len(lines):,} lines, more than {MAX_COLUMNS:,} or "
            f"more than {MAX_CELLS:,} cells; remove those of other runs"
        )
    rows = pd.DataFrame(lines)
    infinite = rows.select_dtypes("number").abs() > MAX_NUMBER
    if infinite.any(axis=None):
        keys = list(infinite.columns[infinite.any()])
        said = f"{run_dir / file}: infinite or huge values are ignored: {', '.join(keys)}."
        logger.warning("%s", visible(cut(said, 500)))
        rows[keys] = rows[keys].mask(infinite[keys])
    return rows


def add_run_option(
    parser: argparse.ArgumentParser,
    help: str = "run folders; may be repeated",
    type: type = Path,
    required: bool = True,
) -> None:
    """
    Add `--run RUN`, which may be repeated, or `--runs RUN RUN`: both accept one or several, in `args.runs`.
    """
    parser.add_argument(
        "--run",
        "--runs",
        dest="runs",
        metavar="RUN",
        action="extend",
        nargs="+",
        required=required,
        type=type,
        help=help,
    )


def find_run_folders(patterns: list[str | Path]) -> list[Path]:
    """
    Find the run folders among paths and glob patterns, each once, in the given order.

    Other files and folders that a pattern matches, such as an earlier report, are skipped. A folder that is given by
    name must be a run folder.

    Raises:
        InputError: If a path does not exist, a pattern matches nothing, or no run folder remains.
    """
    found = {}
    for pattern in map(str, patterns):
        matches = _matches(pattern)
        if matches == [pattern] and os.path.isdir(pattern):
            load_config(pattern)
            found.setdefault(Path(pattern).resolve(), Path(pattern))
        for match in matches:
            if (Path(match) / log_files.METRICS_FILE).is_file():
                found.setdefault(Path(match).resolve(), Path(match))
    if not found:
        raise InputError(
            f"--runs {' '.join(map(str, patterns))}: no run folder among them; a run folder contains config.yaml, "
            "env.json and metrics.jsonl"
        )
    return list(found.values())


def _matches(pattern: str) -> list[str]:
    """
    Return the paths that match a path or a glob pattern.

    Raises:
        InputError: If there is none.
    """
    if os.path.exists(pattern):
        return [pattern]
    matches = sorted(glob.glob(pattern))
    if not matches and glob.has_magic(pattern):
        raise InputError(f"--runs '{pattern}' matches nothing; give run folders, or a glob that matches some")
    if not matches:
        load_config(pattern)  # raises the error that it does not exist
    return matches


class RecordedRuns(NamedTuple):
    """
    The runs of a report or comparison.

    Attributes:
        folders (`list[Path]`): The run folders, each once, in the given order.
        left_out (`list[str]`): A line for each folder without data, with the reason.
        named (`list[Path]`): The folders on the command line: run folders, and folders that contain runs.
    """

    folders: list[Path]
    left_out: list[str]
    named: list[Path]


def find_recorded_runs(patterns: list[str]) -> RecordedRuns:
    """
    Find the runs with at least one recorded step among paths and glob patterns.

    Any other folder stands for the runs below it, at any depth. Files are skipped. A run that was set aside when
    another one took its folder (`NAME.1`) is included only if it is given by name.

    Raises:
        InputError: If a path does not exist, a pattern matches nothing, or no run remains.
    """
    found = {}
    reasons = {}
    named = {}
    for pattern in patterns:
        for match in filter(os.path.isdir, _matches(pattern)):
            for folder in _runs_below(Path(match)):
                reason = _reason_left_out(folder, is_named=folder == Path(pattern))
                if reason is None:
                    found.setdefault(folder.resolve(), folder)
                    named[Path(match)] = None
                else:
                    reasons.setdefault(folder.resolve(), f"`{folder}` is left out: {reason}.")
    left_out = [line for path, line in reasons.items() if path not in found]
    if not found:
        raise InputError(
            f"--runs {' '.join(patterns)}: no run folder with a finished step is there{in_brackets(left_out)}; give "
            "the folder of a run that was trained for at least one step, or a folder of such runs"
        )
    return RecordedRuns(list(found.values()), left_out, list(named))


def in_brackets(left_out: list[str]) -> str:
    """Return the first lines about skipped folders as a parenthesis in a sentence; empty if there are none."""
    if not left_out:
        return ""
    shown = [line.rstrip(".") for line in left_out[:MAX_REASONS]]
    if len(left_out) > MAX_REASONS:
        shown.append(f"{len(left_out) - MAX_REASONS} more")
    return f" ({'; '.join(shown)})"


def _runs_below(folder: Path) -> list[Path]:
    """Return the folder itself if it is a run's, else the runs below it; the folder itself if there is none."""
    runs = []
    for path, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if log_files.CONFIG_FILE in files or log_files.METRICS_FILE in files:
            runs.append(Path(path))
            folders.clear()  # subfolders of a run folder belong to the run
    return runs or [folder]


def _reason_left_out(folder: Path, is_named: bool) -> str | None:
    """Return why a folder has no data to show; `None` if a step of a run is recorded there."""
    if not (folder / log_files.CONFIG_FILE).is_file() and not (folder / log_files.METRICS_FILE).is_file():
        return PLAIN_RUN if is_plain_run(folder) else "it contains no run"
    log = folder / log_files.METRICS_FILE
    if not log.is_file() or log.stat().st_size == 0:
        return "it has no finished step"
    if (folder / SET_ASIDE).is_file() and not is_named:
        return f"a later run took its folder, and it was set aside; include it with `--runs {folder}`"
    return None


def shortest_names(folders: list[Path]) -> list[str]:
    """
    Return a name for each folder: its shortest unique path, counted from the right.

    Args:
        folders (`list[Path]`): Different folders.
    """
    parts = [Path(os.path.abspath(folder)).parts for folder in folders]
    endings = Counter()
    for each in parts:
        endings.update(each[start:] for start in range(len(each)))
    names = []
    for each in parts:
        start = len(each) - 1
        while start > 0 and endings[each[start:]] > 1:
            start -= 1
        names.append("/".join(each[start:]))
    return names


def report_folder(runs: RecordedRuns) -> Path:
    """
    Return the folder for a report: the one folder on the command line that contains the runs, or the parent that all
    given folders share.

    Raises:
        InputError: If there are several parents; their common folder may be a home folder, or `/`.
    """
    if len(runs.named) == 1 and runs.named[0] not in runs.folders:
        return runs.named[0].resolve()
    parents = list(dict.fromkeys(folder.resolve().parent for folder in runs.named))
    if len(parents) > 1:
        raise InputError(
            f"--out is missing: the runs are in {len(parents)} folders ('{parents[0]}', '{parents[1]}'"
            f"{', …' if len(parents) > 2 else ''}); give the folder for the report"
        )
    return parents[0]


def load_runs(folders: list[Path]) -> "tuple[list[RecordedRun], list[str]]":
    """
    Read the runs of a report or comparison, each named by its shortest unique path.

    Returns:
        `tuple[list[RecordedRun], list[str]]`: The runs, in the given order; and a line for each that is left out
            because a file of it cannot be read.

    Raises:
        InputError: If no run can be read.
    """
    runs = []
    lines = []
    for folder, name in zip(folders, shortest_names(folders), strict=True):
        try:
            with naming(folder):
                runs.append(load_run(folder, name))
        except InputError as error:
            if len(folders) == 1:
                raise
            lines.append(f"`{folder}` is left out: {str(error).rstrip('.')}.")
    if not runs:
        raise InputError(f"no run can be read{in_brackets(lines)}; fix one of these files")
    return runs, lines
