"""
Reading the files of a run folder, for training and evaluation alike. Whatever a file holds, content that cannot be
used is reported in one line that names the file and, in a file of lines, the line.
"""

import json
import logging
import os
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer

from ..errors import InputError
from ..text import cut, parse_json, short, visible
from . import shapes
from .shapes import Shape, ShapeError, array, finite, flag, integer, measured, optional, scalar, table, text


logger = logging.getLogger(__name__)

WEIGHTS = ("*.safetensors", "*.bin")
CONFIG_FILE = "config.yaml"
ENV_FILE = "env.json"
BASE_ADAPTER = "base_adapter"  # a folder: the adapter of a run that began from a trained one, as it was then
METRICS_FILE = "metrics.jsonl"
EVENTS_FILE = "events.jsonl"
EVALUATIONS_FILE = "evaluations.jsonl"
OBJECT = table()
MAY_BE_TEXT = optional(text)
MAY_BE_WHOLE = optional(integer())
CONFIG = table(
    known={
        "model_name_or_path": MAY_BE_TEXT,
        "model_revision": MAY_BE_TEXT,
        "dataset_name": MAY_BE_TEXT,
        "task": MAY_BE_TEXT,
        "output_dir": MAY_BE_TEXT,
        "run_dir": MAY_BE_TEXT,
        "hub_model_id": MAY_BE_TEXT,
        "hub_revision": MAY_BE_TEXT,
        "task_level": MAY_BE_WHOLE,
        "task_seed": MAY_BE_WHOLE,
        "max_completion_length": optional(integer(1)),
        "temperature": optional(finite(0)),
        "task_options": optional(table()),
        "chat_template_kwargs": optional(table()),
        "hub_private_repo": optional(flag),
        "hub_push_reference": optional(flag),
        "seed": optional(scalar),
    }
)
BASE_MODEL = table({"name": text}, {"hub_id": MAY_BE_TEXT, "origin": MAY_BE_TEXT, "sha256": MAY_BE_TEXT})
ENV = table(
    known={
        "run_id": MAY_BE_TEXT,
        "base_weights": MAY_BE_TEXT,
        "base_commit": MAY_BE_TEXT,
        "model_class": MAY_BE_TEXT,
        "git_commit": MAY_BE_TEXT,
        "command": MAY_BE_TEXT,
        "variant": text,
        "precision": MAY_BE_TEXT,
        "seed": optional(scalar),
        "base_model": optional(BASE_MODEL),
        "execution": optional(table(known={"merged_copy_bytes": optional(integer(0))}, rest=MAY_BE_TEXT)),
        "versions": optional(table(rest=MAY_BE_TEXT)),
        "hardware": optional(table()),
        "parameters": optional(integer(0)),
        "trainable_parameters": optional(integer(0)),
    }
)
# Kinds of events: those of resets, and those that happen at a generation boundary.
RESET = "reset"
ELASTIC = "elastic_reset"
GROWTH = "growth"
GAMED = "guard_gap"
RESETS = (RESET, ELASTIC)
AT_BOUNDARY = (*RESETS, GROWTH)


MAX_YAML_BYTES = 2**20
MAX_JSON_BYTES = 2**28
MAX_RECORD_BYTES = 2**30  # a file of lines
MAX_YAML_SIZE = 10_000  # of a document with aliases: its values, each as often as aliases repeat it
LONG_TEXT = 64  # characters of a text that count like one value more

# libyaml's parser is fast; a document is composed in Python, because in C deep nesting ends the process.
PARSER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


class YAML(Composer, PARSER):
    """
    YAML as every file of this project is read. A key that occurs twice is an error, because one of two values would be
    lost in silence. So are aliases that stand for a document of more than `MAX_YAML_SIZE` values, or for themselves: a
    file of 300 bytes can stand for gigabytes.
    """

    def __init__(self, stream: str):
        PARSER.__init__(self, stream)
        Composer.__init__(self)
        self._size = 0
        self._size_of_anchor: dict[str, int] = {}

    def compose_node(self, parent, index):
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in self.anchors:
                self._count_alias(event)
            return super().compose_node(parent, index)
        before = self._size
        self._size += 1
        if isinstance(event, yaml.ScalarEvent):
            self._size += len(event.value) // LONG_TEXT
        node = super().compose_node(parent, index)
        if event.anchor is not None:
            self._size_of_anchor[event.anchor] = self._size - before
        return node

    def _count_alias(self, event: yaml.AliasEvent) -> None:
        wrong = None
        if event.anchor not in self._size_of_anchor:
            wrong = f"the anchor {short(event.anchor)} holds itself"
        else:
            self._size += self._size_of_anchor[event.anchor]
            if self._size > MAX_YAML_SIZE:
                wrong = f"its aliases repeat more than {MAX_YAML_SIZE:,} values; write out what is needed"
        if wrong is not None:
            raise yaml.composer.ComposerError(None, None, wrong, event.start_mark)

    def compose_mapping_node(self, anchor):
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            wrong = None
            if not isinstance(key, yaml.ScalarNode):
                wrong = "a key is a list or a mapping; write text"
            elif key.tag != "tag:yaml.org,2002:merge" and (key.tag, key.value) in seen:
                wrong = f"the key {short(key.value)} is given twice"
            if wrong is not None:
                raise yaml.constructor.ConstructorError(None, None, wrong, key.start_mark)
            seen.add((key.tag, key.value))
        return node


def training_note(evaluation: dict[str, Any]) -> str:
    """
    Say, behind the split of a `passk.json` or `drift.json`, how many of its prompts occur in the training set; empty
    if none does, and for the splits of a task, which have no prompt in common.
    """
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


BLANK = "\0 \t\r"  # after a power loss a file may end in zeros
STEP = integer(0)
METRICS = table({"step": STEP}, rest=measured)
EVENTS = table({"event": text, "step_applied": STEP}, {"step_requested": optional(STEP)})
SHARE = finite(0, 1)
INTERVAL = array(optional(shapes.number), length=2)


def passk(content: Any, at: str = "") -> None:
    """
    Check the shape of `passk.json`.

    Keys that only some versions wrote may be missing; values fit prompts, samples and k.
    """
    settings = {"split": text, "temperature": finite(0), "seed": optional(scalar), "task": MAY_BE_TEXT}
    table({"k": array(integer(1), least=1), **settings})(content, at)
    _both_sides(content, at, every_k=True)
    n = content["n"]
    ks = content["k"]

    def part(value: Any, at: str) -> None:
        table({"task": optional(scalar), "level": MAY_BE_WHOLE, "prompts": integer(1)})(value, at)
        counts = table(known={"correct": array(integer(0, n), length=value["prompts"])})
        table(dict.fromkeys(("base", "trained"), counts))(value, at)
        for side in ("base", "trained"):
            _summary(value[side], f"{at}.{side}", ks, every_k=False)

    def checkpoint(value: Any, at: str) -> None:
        table({"step": STEP}, {"correct": array(integer(0, n), least=2)})(value, at)
        _summary(value, at, ks, every_k=False)

    table(
        known={
            "step": optional(STEP),
            "steps_on_record": optional(STEP),
            "max_new_tokens": optional(integer(1)),
            "in_training": optional(integer(0)),
            "run_id": text,
            "by": optional(array(part)),
            "checkpoints": optional(array(checkpoint)),
            "others": optional(table(rest=lambda other, at: _both_sides(other, at, every_k=False))),
        }
    )(content, at)


def _both_sides(content: Any, at: str, every_k: bool) -> None:
    """Check the counts of base and trained model on the same prompts, and the numbers computed from them."""
    table({"n": integer(1, 10_000), "prompts": integer(2)})(content, at)
    n = content["n"]
    prompts = content["prompts"]
    known = {"k": array(integer(1, n), least=1), "task": optional(scalar), "level": MAY_BE_WHOLE}
    table(known=known)(content, at)
    counts = table({"correct": array(integer(0, n), length=prompts)})
    greedy = table(known={"accuracy": SHARE, "interval": INTERVAL, "correct": array(integer(0, 1), length=prompts)})
    three = array(optional(shapes.number), length=3)

    def side(value: Any, at: str) -> None:
        counts(value, at)
        _summary(value, at, content.get("k", []), every_k)

    of_prompts = {"prompt_ids": optional(array(text, length=prompts)), "gain": table(rest=three)}
    of_greedy = {"greedy": optional(table(known={"base": greedy, "trained": greedy, "gain": three}))}
    table({"base": side, "trained": side}, of_prompts | of_greedy)(content, at)


def _summary(value: Any, at: str, ks: list[int], every_k: bool) -> None:
    """Check pass@k with its interval, for every k or for those present; mean length, and the share of samples cut."""
    needed = {name: INTERVAL if "interval@" in name else SHARE for name in value if "@" in name}
    for k in ks:
        if every_k or f"pass@{k}" in value:
            needed[f"pass@{k}"] = SHARE
            needed[f"interval@{k}"] = INTERVAL
    table(needed, {"mean_tokens": optional(finite(0)), "truncated": optional(SHARE)})(value, at)


OF_POINT = {"interval": optional(INTERVAL), "others": optional(table())}
POINT = table({"step": optional(STEP), "kl_to_base": finite()}, OF_POINT, rest=optional(finite()))
DRIFT = table({"points": array(POINT)}, {"run_id": text})


def read_text(path: str | os.PathLike, most: int = MAX_JSON_BYTES) -> str:
    """
    Read a text in UTF-8, without the byte order mark that some editors begin it with.

    Raises:
        `InputError`: The file cannot be read, has more than `most` bytes, or is not text.
    """
    try:
        size = os.path.getsize(path)
        if size > most:
            raise InputError(f"'{path}' has {size:,} bytes, and at most {most:,} are read; write it again")
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"'{path}' is no text ({error.reason} at byte {error.start}); write it again") from error
    except OSError as error:
        raise InputError(f"'{path}' cannot be read ({error.strerror or error})") from error


def read_json(path: str | os.PathLike, shape: Shape = OBJECT) -> Any:
    """
    Read a JSON file, by default one object.

    Raises:
        `InputError`: It is not JSON, or not of the shape.
    """
    content = read_text(path)
    try:
        content = parse_json(content)
    except ValueError as error:
        raise InputError(f"'{path}' is not JSON ({error}); write it again") from error
    return _checked(content, shape, f"'{path}'", "write it again")


def parse_yaml(content: str, said: str) -> Any:
    """
    Return a YAML document. `said`: how an error names its file.

    Raises:
        `InputError`: It is not YAML, or not as [`YAML`] takes it.
    """
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
    # `!!int x` and the like
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, OverflowError) as error:
        why = cut(str(error))
    raise InputError(f"{said} is not YAML: {why}.")


def read_yaml(path: str | os.PathLike) -> dict[str, Any]:
    """
    Read a YAML file, by default a recipe.

    Raises:
        `InputError`: It is not YAML, or not a mapping of the shape.
    """
    content = parse_yaml(read_text(path, MAX_YAML_BYTES), f"'{path}'")
    if not isinstance(content, dict):
        raise InputError(f"'{path}' holds a {type(content).__name__}; it must be a flat mapping of recipe keys")
    return _checked(content, CONFIG, f"'{path}'", "write it again")


def _checked(content: Any, shape: Shape, where: str, cure: str) -> Any:
    try:
        shape(content, "")
    except ShapeError as error:
        raise InputError(f"{where}: {error}; {cure}") from error
    return content


def read_jsonl(
    path: str | os.PathLike, shape: Shape = OBJECT, unique: str | None = None, growing: bool = False
) -> list[dict[str, Any]]:
    """
    Read a file that holds one object on each line; a missing file is empty.

    A last line that is cut off, because the run is still writing or the power failed, is left out with a warning.

    Args:
        path (`str` or `os.PathLike`): The file.
        shape (`Shape`): The shape of every line.
        unique (`str`, *optional*): A key of which no two lines may have the same value.
        growing (`bool`): Whether the file is still being written, so that half a line at its end needs no warning.

    Raises:
        `InputError`: Any other line is not JSON, or not of the shape.
    """
    if not Path(path).exists():
        return []
    lines = read_text(path, MAX_RECORD_BYTES).split("\n")
    filled = [place for place, line in enumerate(lines, start=1) if line.strip(BLANK)]
    last = filled[-1] if filled else 0
    rows = []
    seen = {}
    for place, line in enumerate(lines[:last], start=1):
        ended = place < len(lines)
        try:
            row = parse_json(line)
        except json.JSONDecodeError as error:
            if place == last and (not ended or line.strip(BLANK).startswith("{")):
                if not growing:
                    logger.warning("%s: line %d, the last, is cut off and left out.", visible(str(path)), place)
                break
            raise InputError(f"'{path}' line {place} is not JSON ({error}); remove the line") from error
        except ValueError as error:
            raise InputError(f"'{path}' line {place} cannot be read: {error}; remove the line") from error
        _checked(row, shape, f"'{path}' line {place}", "remove the line")
        if unique is not None and seen.setdefault(row[unique], place) != place:
            raise InputError(
                f"'{path}' line {place}: {unique} {row[unique]} stands in line {seen[row[unique]]} already; "
                "remove one of them"
            )
        rows.append(row)
    return rows


def check_record(run_dir: str | os.PathLike) -> None:
    """
    Read the record that a resume continues.

    Raises:
        `InputError`: A line cannot be read; the message names it.
    """
    for file, shape in ((METRICS_FILE, METRICS), (EVENTS_FILE, EVENTS), (EVALUATIONS_FILE, METRICS)):
        read_jsonl(Path(run_dir) / file, shape)
