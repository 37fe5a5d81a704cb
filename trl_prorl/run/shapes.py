"""
Valid content of each file of a run. Reports and model cards read folders of others: anything else raises one line with
file, place and value.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..text import short
from .log_files import (
    CONFIG_FILE,
    DRIFT_FILE,
    ENV_FILE,
    EVALUATIONS_FILE,
    EVENTS_FILE,
    FORMER_NAMES,
    METRICS_FILE,
    PASSK_FILE,
    TRAINER_STATE,
    read_json,
    read_log,
    read_yaml,
)


Shape = Callable[[Any], None]
MAX_SAMPLES = 100_000  # per prompt: pass@k of 10⁹ takes for ever
MAX_PROMPTS = 100_000
MAX_PARTS = 1000  # of an evaluation: values of k, tasks, checkpoints
MAX_COUNT = 2**53  # larger integers are not exact floats
MAX_TEMPERATURE = 1e6
STATE_FILE = "prorl_state.json"  # state in a checkpoint that Trainer does not save
INDEX_FILES = ("model.safetensors.index.json", "adapter_model.safetensors.index.json")
MAX_NUMBER = 1e100  # the square of a larger one may overflow
ROW_VALUES = frozenset({int, float, bool, type(None)})


class ShapeError(Exception):
    """A value has another shape than `what`; `place`: the keys that lead to it."""

    def __init__(self, value: Any, what: str):
        super().__init__(what)
        self.value = value
        self.what = what
        self.place: list[str] = []


# ------------------------------------------------------------------------------------------------ shapes of a value


def anything(value: Any) -> None:
    """Accept every value."""


def text(value: Any) -> None:
    if not isinstance(value, str):
        raise ShapeError(value, "a text")


def scalar(value: Any) -> None:
    """Accept a table cell."""
    if not isinstance(value, str | bool | float | None) and not is_count(value, -MAX_COUNT, MAX_COUNT):
        raise ShapeError(value, "a text or a number")


def number(least: float = -math.inf, most: float = math.inf) -> Shape:
    """Accept a number in a closed range; in an infinite range also NaN."""

    def check(value: Any) -> None:
        is_number = isinstance(value, float) or is_count(value, -MAX_COUNT, MAX_COUNT)
        is_huge = is_number and MAX_NUMBER < abs(value) < math.inf
        if not is_number or is_huge or value < least or value > most or (math.isnan(value) and math.isfinite(least)):
            raise ShapeError(value, "a number" if math.isinf(least) else f"a number from {least:g} on")

    return check


def count(least: int = 0, most: int = MAX_COUNT) -> Shape:
    """Accept an integer in a closed range."""

    def check(value: Any) -> None:
        if not is_count(value, least, most):
            raise ShapeError(value, f"a whole number from {least:,} to {most:,}")

    return check


def is_count(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def maybe(shape: Shape) -> Shape:
    def check(value: Any) -> None:
        if value is not None:
            shape(value)

    return check


def items(shape: Shape, least: int = 0, most: float = math.inf) -> Shape:
    """Accept a list of limited length."""

    def check(value: Any) -> None:
        if not isinstance(value, list) or not least <= len(value) <= most:
            size = f" of {least}" if least == most else f" of {least} to {most:,}" if most < math.inf else ""
            raise ShapeError(value, f"a list{size}")
        for place, one in enumerate(value):
            _inside(place, shape, one)

    return check


def table(shape: Shape, most: float = math.inf) -> Shape:
    """Accept an object with any keys."""

    def check(value: Any) -> None:
        if not isinstance(value, dict) or len(value) > most:
            raise ShapeError(value, "an object" if math.isinf(most) else f"an object of at most {most:,} keys")
        for key, one in value.items():
            _inside(key, shape, one)

    return check


def record(optional: dict[str, Shape] | None = None, **needed: Shape) -> Shape:
    """Accept an object with the needed keys; other keys are ignored."""
    known = {**needed, **(optional or {})}

    def check(value: Any) -> None:
        if not isinstance(value, dict):
            raise ShapeError(value, "an object")
        for key in needed:
            if key not in value:
                raise ShapeError(value, f"an object with {key!r}")
        for key in value.keys() & known.keys():
            _inside(key, known[key], value[key])

    return check


def _inside(key: Any, shape: Shape, value: Any) -> None:
    try:
        shape(value)
    except ShapeError as error:
        error.place.insert(0, str(key))
        raise


# ----------------------------------------------------------------------------------------------- shapes of the files


INTERVAL = items(maybe(number()), 2, 2)
GAIN = items(maybe(number()), 3, 3)
STEP = maybe(count())


def side(part: dict, prompts: int | None = None) -> Shape:
    """Accept one side of an evaluation: correct samples per prompt, and pass@k with its intervals."""
    scores = {}
    for k in part["k"]:
        scores |= {f"pass@{k}": number(0, 1), f"interval@{k}": INTERVAL}
    correct = items(count(0, part["n"]), prompts or 1, prompts or MAX_PROMPTS)
    check = record({"mean_tokens": number(0), "truncated": number(0, 1), **scores}, correct=correct)

    def check_pairs(value: Any) -> None:
        check(value)
        record(**{f"interval@{k}": INTERVAL for k in part["k"] if f"pass@{k}" in value})(value)

    return check_pairs


def greedy(prompts: int) -> Shape:
    correct = items(count(0, 1), prompts, prompts)
    one = record({"accuracy": number(0, 1), "interval": INTERVAL, "correct": correct})
    return record({"gain": GAIN, "base": one, "trained": one})


NUMBERS = record(prompts=count(1, MAX_PROMPTS), n=count(1, MAX_SAMPLES), k=items(count(1, MAX_SAMPLES), 1, MAX_PARTS))
SETTINGS = record(seed=count(-MAX_COUNT), temperature=number(0, MAX_TEMPERATURE), max_new_tokens=count(1))


PART = record({"split": text}, task=text, level=scalar)


def sampled(value: Any) -> None:
    NUMBERS(value)
    record(k=items(count(1, value["n"])))(value)
    SETTINGS(value)
    record({"gain": table(GAIN)}, base=side(value))(value)
    record(trained=side(value, len(value["base"]["correct"])))(value)


def passk(value: Any) -> None:
    """Accept a `passk.json`."""
    record(split=text, task=text, prompt_ids=items(text))(value)
    sampled(value)
    prompts = len(value["base"]["correct"])
    half = side(value)  # a part shares samples and k with the evaluation, not its prompts
    by = record(task=maybe(text), level=scalar, prompts=count(1), base=half, trained=half)
    record(
        {
            "level": scalar,
            "in_training": maybe(count(0, value["prompts"])),
            "prompts_asked": count(1, MAX_PROMPTS),
            "step": STEP,
            "steps_on_record": STEP,
            "weights": table(text),
            "grader": text,
            "dtype": text,
            "greedy": greedy(prompts),
            "checkpoints": items(lambda one: (record(step=count())(one), side(value, prompts)(one)), most=MAX_PARTS),
            "by": items(by, most=MAX_PARTS),
            "others": table(lambda one: (PART(one), sampled(one)), MAX_PARTS),
        },
        prompt_ids=items(text, prompts, prompts),
    )(value)


POINT = record(
    dict.fromkeys(("reward", "accuracy", *FORMER_NAMES), maybe(number())),
    interval=INTERVAL,
    **dict.fromkeys(("kl_to_base", "base_entropy", "token_agreement"), number()),
    **dict.fromkeys(("entropy", "mean_tokens"), maybe(number())),
)
drift = record(
    {"prompts": count(1), "in_training": maybe(count()), "weights": table(text)},
    points=items(lambda one: (POINT(one), record({"others": table(POINT)}, step=STEP)(one)), most=MAX_PARTS),
)
env = record(
    {
        **dict.fromkeys("run_id variant model_class git_commit command".split(), maybe(text)),
        "base_model": maybe(record(dict.fromkeys(("name", "hub_id", "commit", "sha256"), maybe(text)))),
        "versions": maybe(table(maybe(text))),
        "quantization": maybe(record()),
        "execution": maybe(table(scalar)),
        "hardware": maybe(table(scalar)),
        **dict.fromkeys(("parameters", "trainable_parameters"), maybe(count())),
        "seed": maybe(count(-MAX_COUNT)),
    }
)
event = record(
    {
        **dict.fromkeys(("reason", "optimizer_reset"), maybe(text)),
        **dict.fromkeys(("step_requested", "rank", "rank_before"), maybe(count())),
        **dict.fromkeys(("kl_before", "alpha"), maybe(number())),
    },
    event=text,
    step_applied=count(),
)
config = record(
    {
        **dict.fromkeys("task model_name_or_path dataset_name run_dir output_dir".split(), maybe(text)),
        **dict.fromkeys("model_revision hub_model_id hub_revision lr_scheduler_type loss_type".split(), maybe(text)),
        "chat_template_kwargs": maybe(table(anything)),
        "task_level": scalar,
        "temperature": maybe(number(0)),
        "learning_rate": maybe(number()),
        "train_rows": maybe(count()),
        "max_steps": maybe(count(-1)),
        "max_completion_length": maybe(count()),
        "seed": maybe(count(-MAX_COUNT)),
    }
)
adapter = record({"base_model_name_or_path": maybe(text)})
index = record(weight_map=table(text))


state = record(generations=count(), micro_batches=count(), parts=table(anything))


def trainer_state(value: Any) -> None:
    """Accept a checkpoint's trainer state: an epoch has at least one step."""
    history = items(table(anything))
    record(global_step=count(), max_steps=count(), best_model_checkpoint=maybe(text), log_history=history)(value)
    record(epoch=number(0, value["global_step"] + 1))(value)


def row(value: Any) -> None:
    record(step=count())(value)
    for key, one in value.items():
        if type(one) not in ROW_VALUES or (type(one) is int and abs(one) > MAX_COUNT):
            _inside(key, number(), one)


# By file name; for JSON lines, the shape of each line.
SHAPES = {
    CONFIG_FILE: config,
    ENV_FILE: env,
    METRICS_FILE: row,
    EVALUATIONS_FILE: row,
    EVENTS_FILE: event,
    PASSK_FILE: passk,
    DRIFT_FILE: drift,
    "adapter_config.json": adapter,
    TRAINER_STATE: trainer_state,
    STATE_FILE: state,
    **dict.fromkeys(INDEX_FILES, index),
}


def check_shape(path: Path, value: Any, line: int | None = None) -> None:
    """Raise `InputError` for invalid content of a file or line."""
    try:
        SHAPES[path.name](value)
    except ShapeError as error:
        where = f"'{path}'" if line is None else f"'{path}' line {line}"
        place = f" has {'.'.join(error.place)}:" if error.place else " contains"
        cure = "create it again" if line is None else "remove the line"
        raise InputError(f"{where}{place} {short(error.value)}, not {error.what}; {cure}") from error


def read_shaped(path: Path) -> dict[str, Any]:
    """Read and check a YAML or JSON file of a run."""
    content = read_yaml(path) if path.suffix == ".yaml" else read_json(path)
    check_shape(path, content)
    return content


def read_shaped_rows(folder: Path, file: str) -> list[dict[str, Any]]:
    """Read and check the valid rows of a log file, see [`read_log`]."""
    return read_log(folder, file, check_shape)
