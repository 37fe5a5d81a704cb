"""The files of a run folder."""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from ..errors import InputError
from ..text import visible
from .files import file_sha256, replace_text


logger = logging.getLogger(__name__)

WEIGHTS = ("*.safetensors", "*.bin")
CONFIG_FILE = "config.yaml"
PASSK_FILE = "passk.json"
DRIFT_FILE = "drift.json"
SIDES = ("base", "trained")  # of an evaluation
ENV_FILE = "env.json"
BASE_ADAPTER = "base_adapter"  # folder with the starting adapter of a run from a trained one
METRICS_FILE = "metrics.jsonl"
EVENTS_FILE = "events.jsonl"
EVALUATIONS_FILE = "evaluations.jsonl"
RUN_ID_FILE = "prorl_run.json"
TRAINER_STATE = "trainer_state.json"  # in a checkpoint, with the log of all steps
RUN_ID = "run_id"  # key there and in `env.json`
STEP_OF_WEIGHTS = "step"  # another key there
STARTING_WEIGHTS = "starting_weights"  # in `env.json`, their hashes
# Kinds of events; below, those of resets and of generation boundaries.
RESET = "reset"
ELASTIC = "elastic_reset"
GROWTH = "growth"
GUARD_GAP = "guard_gap"
ENTROPY_COLLAPSE = "entropy_collapse"
NONFINITE = "nonfinite"
RESUME = "resume"
NO_SIGNAL = "no_signal"
STALL = "stall"
UNMERGED = "unmerged_generation"
EVENT_KINDS = (
    RESET,
    ELASTIC,
    GROWTH,
    GUARD_GAP,
    ENTROPY_COLLAPSE,
    NONFINITE,
    RESUME,
    NO_SIGNAL,
    STALL,
    UNMERGED,
)
RESETS = (RESET, ELASTIC)
AT_BOUNDARY = (*RESETS, GROWTH)
LOG_FILES = (METRICS_FILE, EVENTS_FILE, EVALUATIONS_FILE)
INDEX_FILES = ("model.safetensors.index.json", "adapter_model.safetensors.index.json")
ATTEMPT = "attempt"
STARTS = (RESUME, "rollback")  # begin a new attempt; runs of earlier versions have roll-backs
RECORDED = "TRL"  # variant in `env.json` of a run of `RunRecorder`


def read_jsonl(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Read one object per line; a missing file is empty. A line that a kill has cut off is skipped."""
    rows = []
    for line in Path(path).read_text(encoding="utf-8").splitlines() if Path(path).exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            logger.warning("%s: a line that is not JSON was skipped.", visible(str(path)))
    return rows


def attempt_of(row: dict[str, Any]) -> int:
    return row.get(ATTEMPT, 0)


def read_log(folder: str | os.PathLike, file: str) -> list[dict[str, Any]]:
    """
    Read the valid rows of a log file.

    After a resume at step `s`, rows of earlier attempts beyond `s` are skipped: their steps were computed again. So
    are events of step `s` before a generation, which came after the checkpoint.
    """
    rows = read_jsonl(Path(folder) / file)
    events = rows if file == EVENTS_FILE else read_jsonl(Path(folder) / EVENTS_FILE)
    starts = [(attempt_of(event), event["step_applied"]) for event in events if event["event"] in STARTS]

    def is_valid(row: dict[str, Any]) -> bool:
        return all(is_before(row, step) for attempt, step in starts if attempt > attempt_of(row))

    return [row for row in rows if is_valid(row)]


def is_before(row: dict[str, Any], step: int) -> bool:
    if row.get("event") in AT_BOUNDARY:
        return row["step_applied"] < step
    return row.get("step", row.get("step_applied")) <= step


def next_attempt(folder: str | os.PathLike) -> int:
    return 1 + max((attempt_of(event) for event in read_jsonl(Path(folder) / EVENTS_FILE)), default=0)


class JsonLines:
    """Appends objects to a file, and first ends a truncated last line. Unless it `resumes`, the file must be new."""

    def __init__(self, path: str | os.PathLike, resumes: bool):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch(exist_ok=resumes)
        with open(self.path, "rb+") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")

    def write(self, row: dict[str, Any]) -> None:
        try:
            with open(self.path, "a") as file:
                file.write(json.dumps(row) + "\n")
                if row.get("event") == RESUME:  # after a power loss, rows of the new attempt must not outlive it
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            error.filename = str(self.path)  # a full disk names no file
            raise


def write_run_id(folder: str | os.PathLike, run_id: str | None, step: int | None = None) -> None:
    """Write a run's id (`None`: no run's) and the weights' step next to weights."""
    path = Path(folder) / RUN_ID_FILE
    if run_id is None:
        path.unlink(missing_ok=True)
    else:
        content = {RUN_ID: run_id}
        if step is not None:
            content[STEP_OF_WEIGHTS] = step
        replace_text(path, json.dumps(content) + "\n")


def saved_run_id(folder: str | os.PathLike) -> str | None:
    return _read_key(Path(folder) / RUN_ID_FILE, RUN_ID)


def saved_step(folder: str | os.PathLike) -> int | None:
    step = _read_key(Path(folder) / RUN_ID_FILE, STEP_OF_WEIGHTS)
    return step if type(step) is int else None


def recorded_run_id(run_dir: str | os.PathLike) -> str | None:
    return _read_key(Path(run_dir) / ENV_FILE, RUN_ID)


def _read_key(path: Path, key: str) -> Any:
    try:
        return read_json(path).get(key)
    except InputError:
        return None


def weight_files(folder: str | os.PathLike) -> list[Path]:
    """Return the weight files of a model in a folder, sorted."""
    paths = [path for pattern in WEIGHTS for path in Path(folder).glob(pattern)]
    return sorted(path for path in paths if path.name != "training_args.bin" and path.is_file())


def weight_hashes(folder: str | os.PathLike) -> dict[str, str]:
    """Return the SHA-256 of every weight file in a folder, by name."""
    return {path.name: file_sha256(path) for path in weight_files(folder)}


def step_of_evaluation(evaluation: dict[str, Any]) -> int | None:
    """Return the last step on record when a run was evaluated (of `drift.json`: of its points), if known."""
    points = evaluation.get("points", [evaluation])
    steps = [point.get(key) for point in points for key in ("step", "steps_on_record")]
    return max((step for step in steps if step is not None), default=None)


def has_weights_of(evaluation: dict[str, Any], folder: str | os.PathLike) -> bool | None:
    """Return whether a folder has the weights that an evaluation measured; `None` if one of the two is unknown."""
    measured = evaluation.get("weights")
    if measured is None or not weight_files(folder):
        return None
    return measured == weight_hashes(folder)


def training_note(evaluation: dict[str, Any]) -> str:
    """Describe an evaluation's prompts that occur in the training set, if any."""
    if "in_training" not in evaluation:
        return ""
    count = evaluation["in_training"]
    if count is None:
        return " (not compared with the training set)"
    if count == 0:
        return ""
    if count == evaluation["prompts"]:
        return " (all prompts occur in the training set)"
    return f" ({count} of {evaluation['prompts']} prompts occur in the training set)"


def read_json(path: str | os.PathLike) -> dict[str, Any]:
    """Raises `InputError`: there is no such file, or it is not a JSON object."""
    return _read(path, json.loads)


def read_yaml(path: str | os.PathLike) -> dict[str, Any]:
    """Raises `InputError`: there is no such file, or it is not a YAML mapping."""
    return _read(path, yaml.safe_load)


def read_content(path: Path) -> dict[str, Any]:
    """Read a YAML or JSON file of a run."""
    return read_yaml(path) if path.suffix == ".yaml" else read_json(path)


def _read(path: str | os.PathLike, parse: Callable[[str], Any]) -> dict[str, Any]:
    try:
        content = parse(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(f"'{path}' cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"'{path}' contains a {type(content).__name__}, not a mapping")
    return content
