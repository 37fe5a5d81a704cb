"""The list of all tasks."""

import inspect
import re
from importlib import import_module

from trl_prorl.tasks.base import Task, check_task
from trl_prorl.text import nearest


# name -> "module:class", imported on demand.
TASKS = {
    "bracket_matching": "trl_prorl.tasks.bracket_matching:BracketMatching",
    "code": "trl_prorl.tasks.code:Code",
    "constrained": "trl_prorl.tasks.constrained:Constrained",
    "digit_checksum": "trl_prorl.tasks.digit_checksum:DigitChecksum",
    "gsm8k": "trl_prorl.tasks.gsm8k:GSM8K",
    "guess": "trl_prorl.tasks.guess:Guess",
    "instructions": "trl_prorl.tasks.instructions:Instructions",
    "math": "trl_prorl.tasks.math:Math",
    "mixture": "trl_prorl.tasks.mixture:Mixture",
    "parity": "trl_prorl.tasks.parity:Parity",
    "reverse_digits": "trl_prorl.tasks.reverse_digits:ReverseDigits",
    "sorting": "trl_prorl.tasks.sorting:Sorting",
    "stem": "trl_prorl.tasks.stem:Stem",
    "sums": "trl_prorl.tasks.sums:Sums",
}
# Prefix -> the class of all its tasks, which takes the rest of the name as its first argument.
PREFIXES = {"rg": "trl_prorl.tasks.reasoning_gym:ReasoningGym"}
PLUGINS = []  # files of `--plugin`, which have added to them


def task_names() -> list[str]:
    """Return the names that [`get_task`] knows, sorted."""
    return sorted(TASKS)


def task_class(name: str) -> type[Task]:
    """
    Return the class of a task.

    Raises:
        `ValueError`: If there is no such task, or no class where it is registered.
    """
    return class_at(name, _place(name))


def class_at(name: str, place: object) -> type[Task]:
    """
    Return the class that an entry of the registry names, `"module:Class"`.

    Raises:
        `ValueError`: It names none.
    """
    entry = f"the task {name!r} is registered as {place!r}"
    if not isinstance(place, str) or not re.fullmatch(r"[\w.]+:\w+", place):
        raise ValueError(f"{entry}, which is not of the form 'module:Class'; write it as 'own:Roman'")
    module, _, attribute = place.partition(":")
    try:
        found = getattr(import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and imports another that is not
        raise ValueError(f"{entry}, and there is no module {error.name!r}") from error
    if not inspect.isclass(found):
        what = "nothing" if found is None else f"a {type(found).__name__}"
        raise ValueError(f"{entry}, and {attribute!r} is {what} there; name a class")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise ValueError(f"{entry}, and that class lacks {missing}; write what it lacks")
    return found


def _place(name: str) -> str:
    place = TASKS.get(name) if isinstance(name, str) else None
    if isinstance(name, str) and ":" in name:
        place = PREFIXES.get(name.partition(":")[0])
    if place is None:
        raise ValueError(
            f"name={name!r} is not a task{nearest(str(name), TASKS)}. Tasks: {', '.join(task_names())}; rg:NAME for "
            "the families of reasoning-gym; a task of yours is named after --plugin FILE.py"
        )
    return place


def check_name(name: str) -> None:
    """Raise `ValueError` as [`get_task`] does if there is no such task; nothing is imported."""
    for one in parse_weights(name) if isinstance(name, str) and "," in name else [name]:
        _place(one)


def get_task(name: str, **options) -> Task:
    """
    Return a task by its name.

    Args:
        name (`str`): one of [`task_names`], `rg:` and a family of reasoning-gym, or several names with weights
            (`"gsm8k:0.5,code:0.3"`), which make a [`~trl_prorl.tasks.mixture.Mixture`] of the tasks with
            their defaults.
        options: options of the task, such as `level`; its docstring lists them.

    Example:

    ```python
    task = get_task("reverse_digits", level=3)
    row = task.rows("train", 1)[0]
    task.reward(task.gold(row), row)  # 1.0
    ```

    Raises:
        `ValueError`: If there is no such task, if it has no such option, or if an option has an impossible value, or
            if a class of a user's lacks what a task needs.
    """
    if isinstance(name, str) and "," in name:
        if options:
            raise ValueError(
                f"task={name!r} takes no {', '.join(options)}: write task: mixture and give every task its options in "
                "task_options: {tasks: {gsm8k: {weight: 0.5, path: ...}}}"
            )
        return get_task("mixture", tasks=parse_weights(name))
    cls = task_class(name)
    _, separator, rest = name.partition(":")
    first = [rest] if separator else []
    known = list(inspect.signature(cls).parameters)[len(first) :]
    for option, value in options.items():
        if option not in known:
            raise ValueError(
                f"{option}={value!r} is not an option of the task {name!r}{nearest(option, known)}. Options: "
                f"{', '.join(known) or 'none'}"
            )
    task = cls(*first, **options)
    check_task(task)
    return task


def parse_weights(text: str) -> dict[str, dict]:
    """
    Parse `"gsm8k:0.5,rg:chain_sum:0.2"` into the mapping that [`~trl_prorl.tasks.mixture.Mixture`] takes.

    Raises:
        `ValueError`: If a part is not a name, a colon and a number.
    """
    members: dict[str, dict] = {}
    for part in text.split(","):
        name, _, weight = part.strip().rpartition(":")
        try:
            number = float(weight)
        except ValueError:
            number = None
        if not name or number is None:
            raise ValueError(
                f"task={text!r}: {part.strip()!r} is not a task and its weight, as in 'gsm8k:0.5,code:0.3'"
            )
        if name in members:
            raise ValueError(f"task={text!r} names {name!r} twice; use the task mixture with task_options instead")
        members[name] = {"weight": number}
    return members


def task_of_recipe(name: str, level: int | None = None, options: dict | None = None, path: str | None = None) -> Task:
    """
    Return the task that a recipe's keys name, for training and for evaluation alike.

    Args:
        name (`str`): the key `task`; a mixture is `mixture`, with its members in `task_options`, or names with
            weights.
        level (`int`, *optional*): the key `task_level`; `None` is the task's own default.
        options (`dict`, *optional*): the key `task_options`.
        path (`str`, *optional*): the key `dataset_name`: a Hub name or a local folder, for a task that reads data.

    Raises:
        `ValueError`: As [`get_task`].
    """
    given = {}
    if level is not None:
        given["level"] = level
    if path is not None:
        given["path"] = path
    return get_task(name, **(options or {}), **given)
