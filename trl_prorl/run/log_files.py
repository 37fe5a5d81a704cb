"""
The files of a run folder.

Unusable content is reported in one line with the file and, for JSON lines, the line number.
"""

import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError

from ..errors import InputError
from ..text import cut, parse_json, short, visible
from .files import file_sha256, read_text, replace_text, replaced


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
STEPS_MADE = "steps_made"  # another, if the weights are those of an earlier step, the best
# Kinds of events; below, those of resets and of generation boundaries.
RESET = "reset"
ELASTIC = "elastic_reset"
GROWTH = "growth"
GUARD_GAP = "guard_gap"
ENTROPY_COLLAPSE = "entropy_collapse"
REWARD_COLLAPSE = "collapse"
NONFINITE = "nonfinite"
ROLLBACK = "rollback"
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
    REWARD_COLLAPSE,
    NONFINITE,
    ROLLBACK,
    RESUME,
    NO_SIGNAL,
    STALL,
    UNMERGED,
)
RESETS = (RESET, ELASTIC)
AT_BOUNDARY = (*RESETS, GROWTH)
# Required keys of each line of a log file.
LOG_FILES = {METRICS_FILE: ("step",), EVENTS_FILE: ("event", "step_applied"), EVALUATIONS_FILE: ("step",)}
FORMER_NAMES = {"gold": "accuracy"}  # of metrics in `metrics.jsonl` and `drift.json`
ATTEMPT = "attempt"
STARTS = (RESUME, ROLLBACK)  # begin a new attempt
RECORDED = "TRL"  # variant in `env.json` of a run of `RunRecorder`
MAX_STEP = 2**53
MAX_LINES = 2**20
MAX_LINE = 2**20  # characters; a row has about 2,000
BLANK = "\0 \t\r"  # a power loss may leave zeros at the end of a file

MAX_YAML_VALUES = 2**20  # per document, with aliases expanded
LONG_TEXT = 64  # characters that count as one more value


def read_jsonl(path: str | os.PathLike) -> list[dict[str, Any]]:
    """
    Read one object per line; a missing file is empty. Raises `InputError`: a line is not an object, or lacks a key of
    `LOG_FILES`.
    """
    return [row for _, row in numbered_rows(path)]


def numbered_rows(path: str | os.PathLike) -> list[tuple[int, dict[str, Any]]]:
    """
    Read [`read_jsonl`]'s rows with line numbers. Skips a line that a kill truncated: the last of the file, or of an
    attempt.
    """
    if not Path(path).exists():
        return []
    needed = LOG_FILES.get(Path(path).name, ())
    text = read_text(path)
    if text.count("\n") > MAX_LINES:
        raise InputError(f"'{path}' has more than the {MAX_LINES:,} lines that are read; remove the first ones")
    lines = text.rstrip(BLANK + "\n").split("\n")
    rows = []
    torn = None  # error of a possibly truncated line
    newest = 0  # attempt of the previous row
    for place, line in enumerate(lines, start=1):
        where = f"'{path}' line {place}"
        if len(line) > MAX_LINE:
            raise InputError(f"{where} has {len(line):,} characters, more than {MAX_LINE:,}; remove the line")
        try:
            row = parse_json(line)
        except ValueError as error:
            unreadable = InputError(f"{where} is not JSON ({error}); remove the line")
            may_be_cut = line.strip(BLANK) == "" or line.startswith("{") or not text.endswith("\n")
            if not may_be_cut or not isinstance(error, json.JSONDecodeError):
                raise unreadable from error
            torn = unreadable
            continue
        _check_keys(row, needed, where, "remove the line")
        attempt = attempt_of(row)
        numbers = {key: row[key] for key in needed if key != "event"} | {ATTEMPT: attempt}
        for key, value in numbers.items():
            if type(value) is not int or not 0 <= value <= MAX_STEP:
                raise InputError(f"{where} has {key}: {short(value)}, not a whole number from 0 on; remove the line")
        if torn is not None and attempt <= newest:
            raise torn  # the process continued writing, so the line was not truncated by a kill
        torn = None
        newest = attempt
        rows.append((place, with_current_names(row)))
    if torn is not None and lines[-1]:
        logger.warning("%s: line %d (the last one) is truncated and was ignored.", visible(str(path)), len(lines))
    return rows


def with_current_names(metrics: dict[str, Any]) -> dict[str, Any]:
    # Interned: 100,000 rows would have 0.4 GB of names.
    return {sys.intern(FORMER_NAMES.get(name, name)): value for name, value in metrics.items()}


def attempt_of(row: dict[str, Any]) -> int:
    return row.get(ATTEMPT, 0)


def read_log(
    folder: str | os.PathLike, file: str, check: Callable[[Path, dict, int], None] | None = None
) -> list[dict[str, Any]]:
    """
    Read the valid rows of a log file. Raises `InputError`: a line cannot be read.

    After a resume at step `s`, rows of earlier attempts beyond `s` are skipped: their steps were computed again. So
    are events of step `s` before a generation, which came after the checkpoint. Roll-backs stay. `check` gets the
    path, each row and its line number.
    """
    path = Path(folder) / file
    rows = numbered_rows(path)
    events = rows if file == EVENTS_FILE else numbered_rows(Path(folder) / EVENTS_FILE)
    starts = [(attempt_of(event), event["step_applied"]) for _, event in events if event["event"] in STARTS]
    attempts = {attempt_of(row) for _, row in rows}
    ends = {each: min((step for attempt, step in starts if attempt > each), default=MAX_STEP) for each in attempts}
    kept = []
    for place, row in rows:
        if check is not None:
            check(path, row, place)
        if row.get("event") == ROLLBACK or is_before(row, ends[attempt_of(row)]):
            kept.append(row)
    return kept


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
        if self.path.stat().st_nlink > 1:  # hard-linked copies must not change
            with replaced(self.path) as staging:
                shutil.copyfile(self.path, staging)
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
                if row.get("event") in STARTS:  # after a power loss, rows of the new attempt must not outlive it
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            error.filename = str(self.path)  # a full disk names no file
            raise


def write_run_id(
    folder: str | os.PathLike, run_id: str | None, step: int | None = None, made: int | None = None
) -> None:
    """Write a run's id (`None`: no run's), the weights' step and the steps `made` by then, next to weights."""
    path = Path(folder) / RUN_ID_FILE
    if run_id is None:
        path.unlink(missing_ok=True)
    else:
        content = {RUN_ID: run_id}
        if step is not None:
            content[STEP_OF_WEIGHTS] = step
        if made is not None and made != step:
            content[STEPS_MADE] = made
        replace_text(path, json.dumps(content) + "\n")


def saved_run_id(folder: str | os.PathLike) -> str | None:
    return _read_key(Path(folder) / RUN_ID_FILE, RUN_ID)


def saved_step(folder: str | os.PathLike) -> int | None:
    step = _read_key(Path(folder) / RUN_ID_FILE, STEP_OF_WEIGHTS)
    return step if type(step) is int else None


def steps_made(folder: str | os.PathLike) -> int:
    """Return the number of steps that a run had made when it saved its model; 0 if it is not known."""
    made = _read_key(Path(folder) / RUN_ID_FILE, STEPS_MADE)
    return made if type(made) is int else saved_step(folder) or 0


def recorded_run_id(run_dir: str | os.PathLike) -> str | None:
    return _read_key(Path(run_dir) / ENV_FILE, RUN_ID)


def _read_key(path: Path, key: str) -> Any:
    try:
        return read_json(path).get(key)
    except InputError:
        return None


def weight_files(folder: str | os.PathLike) -> list[Path]:
    """Return the weight files of a model in a folder, sorted."""
    found = [path for pattern in WEIGHTS for path in Path(folder).glob(pattern)]
    return sorted(path for path in found if path.name != "training_args.bin" and path.is_file())


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


def read_json(path: str | os.PathLike, needed: Iterable[str] = ()) -> dict[str, Any]:
    """Raises `InputError`: not JSON, not an object, or one of the `needed` keys is missing."""
    content = read_text(path)
    try:
        content = parse_json(content)
    except ValueError as error:
        raise InputError(f"'{path}' is not JSON ({error}); create it again") from error
    _check_keys(content, needed, f"'{path}'")
    return content


def _check_keys(content: Any, needed: Iterable[str], where: str, cure: str = "create it again") -> None:
    if not isinstance(content, dict):
        raise InputError(f"{where} contains {short(content)}, not an object; {cure}")
    for key in needed:
        if key not in content:
            raise InputError(f"{where} has no {key!r}; {cure}")


def read_yaml(path: str | os.PathLike) -> dict[str, Any]:
    """Raises `InputError`: not YAML, or not a mapping."""
    content = parse_yaml(read_text(path), f"'{path}'")
    if not isinstance(content, dict):
        raise InputError(f"'{path}' contains a {type(content).__name__}; it must be a flat mapping of recipe keys")
    return content


def parse_yaml(content: str, said: str) -> Any:
    """Raises `InputError`: not YAML, or rejected by [`YAML`]. `said` is its name in errors."""
    try:
        value = yaml.load(content, YAML)
        json.dumps(value, default=str, skipkeys=True)  # a number of thousands of digits cannot be printed
        return value
    except yaml.MarkedYAMLError as error:
        why = cut(error.problem or str(error))
        if error.problem_mark:
            why += f" (line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1})"
    except RecursionError:
        why = "it is nested too deeply"
    # Also from `!!int x` and the like.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, OverflowError) as error:
        why = cut(str(error))
    raise InputError(f"{said} is not YAML: {why}.")


class YAML(yaml.SafeLoader):  # not in C, where deep nesting crashes the process
    """
    Rejects a key that occurs twice, and aliases that expand beyond `MAX_YAML_VALUES` values: 300 bytes can expand to
    gigabytes.
    """

    def compose_document(self):
        node = super().compose_document()
        _count_values(node, {})
        return node


def _count_values(node: yaml.Node, counts: dict[int, int]) -> int:
    """
    Count values with aliases expanded. `counts`, by node `id`, is 0 during a count. Raises `ComposerError`: too many,
    a cycle, or a key that is not text or occurs twice.
    """
    if id(node) in counts:
        if counts[id(node)] == 0:
            raise ComposerError(None, None, "an anchor contains itself", node.start_mark)
        return counts[id(node)]
    counts[id(node)] = 0
    total = 1
    if isinstance(node, yaml.ScalarNode):
        total += len(node.value) // LONG_TEXT
    elif isinstance(node, yaml.SequenceNode):
        total += sum(_count_values(one, counts) for one in node.value)
    else:
        seen = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ComposerError(None, None, "a key is a list or a mapping; it must be text", key.start_mark)
            name = (key.tag, key.value)
            if name in seen and key.tag != "tag:yaml.org,2002:merge":
                raise ComposerError(None, None, f"the key {short(key.value)} is given twice", key.start_mark)
            seen.add(name)
            total += _count_values(value, counts)
    if total > MAX_YAML_VALUES:
        why = f"its aliases expand to more than {MAX_YAML_VALUES:,} values; write the values out"
        raise ComposerError(None, None, why, node.start_mark)
    counts[id(node)] = total
    return total
