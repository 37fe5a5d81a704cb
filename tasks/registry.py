"""The one place that knows which tasks there are."""

import inspect
from difflib import get_close_matches
from importlib import import_module

from .base import Task


# name -> "module:class", imported when it is asked for.
TASKS = {
    "bracket_matching": "tasks.bracket_matching:BracketMatching",
    "digit_checksum": "tasks.digit_checksum:DigitChecksum",
    "gsm8k": "tasks.gsm8k:GSM8K",
    "parity": "tasks.parity:Parity",
    "reverse_digits": "tasks.reverse_digits:ReverseDigits",
    "sorting": "tasks.sorting:Sorting",
}


def task_names() -> list[str]:
    """The names that [`get_task`] knows, sorted."""
    return sorted(TASKS)


def task_class(name: str) -> type[Task]:
    """
    The class of a task.

    Raises:
        `ValueError`: if there is no such task.
    """
    if name not in task_names():
        raise ValueError(
            f"name={name!r} is not a task.{_suggest(name, task_names())} Tasks: {', '.join(task_names())}"
        )
    module, _, attribute = TASKS[name].partition(":")
    return getattr(import_module(module), attribute)


def get_task(name: str, **options) -> Task:
    """
    A task by its name.

    Args:
        name (`str`): one of [`task_names`].
        options: options of the task, such as `level`; its docstring lists them.

    Raises:
        `ValueError`: if there is no such task, if it has no such option, or if an option has a value it cannot have.

    Example:

    ```python
    task = get_task("reverse_digits", level=3)
    row = task.rows("train", 1)[0]
    task.reward(task.gold(row), row)  # 1.0
    ```
    """
    cls = task_class(name)
    known = list(inspect.signature(cls).parameters)
    for option, value in options.items():
        if option not in known:
            raise ValueError(
                f"{option}={value!r} is not an option of the task {name!r}.{_suggest(option, known)} "
                f"Options: {', '.join(known)}"
            )
    return cls(**options)


def task_of_recipe(name: str, level: int | None = None, options: dict | None = None, path: str | None = None) -> Task:
    """
    The task that a recipe's keys name, for training and for evaluation alike.

    Args:
        name (`str`): the key `task`.
        level (`int`, *optional*): the key `task_level`; `None` is the task's own default.
        options (`dict`, *optional*): the key `task_options`.
        path (`str`, *optional*): the key `dataset_name`: a Hub name or a local folder, of a task that reads one.

    Raises:
        `ValueError`: as [`get_task`].
    """
    given = {"level": level, "path": path}
    return get_task(name, **(options or {}), **{key: value for key, value in given.items() if value is not None})


def _suggest(value: object, known: list[str]) -> str:
    matches = get_close_matches(str(value), known, n=1)
    return f" Did you mean {matches[0]!r}?" if matches else ""
