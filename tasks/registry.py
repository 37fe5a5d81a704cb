"""The list of all tasks."""

import inspect
from importlib import import_module
from pathlib import Path

from trl_prorl.tasks.base import Task
from trl_prorl.text import nearest


# name -> "module:class", imported on demand.
TASKS = {
    "bracket_matching": "trl_prorl.tasks.bracket_matching:BracketMatching",
    "code": "trl_prorl.tasks.code:Code",
    "digit_checksum": "trl_prorl.tasks.digit_checksum:DigitChecksum",
    "gsm8k": "trl_prorl.tasks.gsm8k:GSM8K",
    "instructions": "trl_prorl.tasks.instructions:Instructions",
    "math": "trl_prorl.tasks.math:Math",
    "mixture": "trl_prorl.tasks.mixture:Mixture",
    "parity": "trl_prorl.tasks.parity:Parity",
    "reverse_digits": "trl_prorl.tasks.reverse_digits:ReverseDigits",
    "sorting": "trl_prorl.tasks.sorting:Sorting",
    "stem": "trl_prorl.tasks.stem:Stem",
    "sums": "trl_prorl.tasks.sums:Sums",
}
# Prefix -> class of its tasks. The rest of the name becomes the first argument.
PREFIXES = {"rg": "trl_prorl.tasks.reasoning_gym:ReasoningGym"}
PLUGINS: dict[str, Path] = {}  # files of code that the command line names, by their name there


def task_names() -> list[str]:
    """Return the names of all registered tasks, sorted."""
    return sorted(TASKS)


def check_name(name: str) -> str:
    """
    Return the registry entry of a task, without importing it.

    Raises:
        `ValueError`: If there is no such task.
    """
    prefix, colon, _ = name.partition(":")
    place = PREFIXES.get(prefix) if colon else TASKS.get(name)
    if place is None:
        raise ValueError(
            f"task={name!r} is not a task{nearest(name, TASKS)}. `trl-prorl tasks` lists them. To add your own, pass "
            "--plugin FILE.py"
        )
    return place


def task_class(name: str) -> type[Task]:
    """Return the class of a task. Raises the `ValueError` of [`check_name`]."""
    module, _, attribute = check_name(name).partition(":")
    return getattr(import_module(module), attribute)


def option_names(name: str) -> list[str]:
    """Return the names of a task's options. The first argument of a task with a prefix is the rest of its name."""
    parameters = list(inspect.signature(task_class(name)).parameters)
    return parameters[1:] if ":" in name else parameters


def get_task(name: str, **options) -> Task:
    """
    Create a task by its name.

    Args:
        name (`str`): A name that `task_names()` lists, or `rg:FAMILY` (a family of reasoning-gym).
        **options (`Any`): Options of the task, such as `level`. The error for an unknown one lists
            them, and so does `trl-prorl tasks list`.

    Returns:
        [`~trl_prorl.tasks.Task`]: The task.

    Raises:
        `ValueError`: There is no such task or option, or an option has an impossible value.

    Example:

    ```python
    >>> from trl_prorl.tasks import get_task, task_names

    >>> "reverse_digits" in task_names()
    True
    >>> task = get_task("reverse_digits", level=3)
    >>> row = task.rows("train", 1)[0]
    >>> task.reward(task.gold(row), row)
    1.0
    ```
    """
    name = str(name)  # YAML may have read a number
    cls = task_class(name)
    _, separator, rest = name.partition(":")
    first = [rest] if separator else []
    known = option_names(name)
    for option, value in options.items():
        if option not in known:
            raise ValueError(
                f"{option}={value!r} is not an option of the task {name!r}{nearest(option, known)}. Options: "
                f"{', '.join(known) or 'none'}"
            )
    return cls(*first, **options)


def task_of_recipe(name: str, level: int | None = None, options: dict | None = None, path: str | None = None) -> Task:
    """
    Create the task of a recipe, for training and for evaluation.

    Args:
        name (`str`): the key `task`. A mixture is `mixture` with its members in `task_options`.
        level (`int`, *optional*): the key `task_level`; `None` selects the task's default.
        options (`dict`, *optional*): the key `task_options`.
        path (`str`, *optional*): the key `dataset_name`: a Hub name or a local path, for a task that reads data.

    Raises:
        `ValueError`: As [`get_task`].
    """
    given = {"level": level, "path": path}
    given = {key: value for key, value in given.items() if value is not None}
    return get_task(name, **{**(options or {}), **given})  # a key of the recipe wins
