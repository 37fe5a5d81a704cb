import importlib
import pkgutil

import pytest

import tasks
from tasks import Task, get_task, task_names
from tasks.registry import PREFIXES, task_class


def test_task_names():
    assert {"bracket_matching", "digit_checksum", "gsm8k", "parity", "reverse_digits", "sorting"} <= set(task_names())
    assert {"code", "constrained", "instructions", "math", "mixture", "stem"} <= set(task_names())
    assert task_names() == sorted(task_names())


@pytest.mark.parametrize("name", task_names())
def test_every_entry_is_a_task_of_that_name(name):
    assert issubclass(task_class(name), Task)
    assert task_class(name).name == name


def concrete_tasks(cls):
    for subclass in cls.__subclasses__():
        yield from concrete_tasks(subclass)
        if subclass.__module__.startswith("trl_prorl.tasks.") and not subclass.__abstractmethods__:
            yield subclass


def test_every_task_is_registered():
    for module in pkgutil.iter_modules(tasks.__path__, "tasks."):
        if module.name != "tasks.__main__":
            importlib.import_module(module.name)
    known = {task_class(name) for name in [*task_names(), *(f"{prefix}:any" for prefix in PREFIXES)]}
    assert set(concrete_tasks(Task)) == known


PREFIX = "is not a task.*rg:NAME for the families of reasoning-gym"


@pytest.mark.parametrize(
    "name, options, message",
    [
        *((name, {}, PREFIX) for name in ("parity:", "parity:x", "rgx:chain_sum", ":", "rg", "parity.x")),
        *((name, {}, "is not a task. Tasks: bracket_matching") for name in ("", "xyzzy", None, 3, [1])),
        ("revers_digits", {}, "'revers_digits'.*mean 'reverse_digits'.*Tasks: bracket_matching, .*sorting"),
        ("sorting", {"levle": 2}, "levle=2 .*'sorting'.*mean 'level'.*Options: level, reward"),
        # Options belong to their task.
        ("parity", {"reward": "distance"}, "reward='distance' .*'parity'.*Options: level"),
        ("gsm8k", {"level": 1}, "level=1 .*'gsm8k'.*Options: path"),
    ],
)
def test_what_is_unknown_is_named_with_the_nearest(name, options, message):
    with pytest.raises(ValueError, match=message):
        get_task(name, **options)


def test_options_arrive():
    assert get_task("parity", level=2).level == 2
