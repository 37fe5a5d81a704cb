import importlib
import pkgutil
import sys

import pytest

import trl_prorl.tasks
import trl_prorl.tasks.__main__
import trl_prorl.tasks.reasoning_gym
from trl_prorl.tasks import Task, get_task, task_names
from trl_prorl.tasks.__main__ import main
from trl_prorl.tasks.generated import GeneratedTask
from trl_prorl.tasks.registry import PREFIXES, task_class


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
    for module in pkgutil.iter_modules(trl_prorl.tasks.__path__, "trl_prorl.tasks."):
        if module.name != "trl_prorl.tasks.__main__":
            importlib.import_module(module.name)
    known = {task_class(name) for name in [*task_names(), *(f"{prefix}:any" for prefix in PREFIXES)]}
    # A test that ran before may have registered a task of the study.
    assert set(concrete_tasks(Task)) == {task for task in known if not task.__module__.startswith("study.")}


SORTS = "reward=.*exact, distance, inclusion_ordering, nearness, inclusion_lcs"
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
        *(("sorting", {"reward": wrong}, SORTS) for wrong in ("dist", "inclusion_order", "", None, 1, ["distance"])),
        *(("sums", {"reward": wrong}, "reward=.*exact, steps") for wrong in ("step", "", None, 1, ["steps"])),
        ("reverse_digits", {"reward": "first"}, "reward='first'"),
        ("instructions", {"reward": "half"}, "reward='half' must be one of exact, share"),
    ],
)
def test_what_is_unknown_is_named_with_the_nearest(name, options, message):
    with pytest.raises(ValueError, match=message):
        get_task(name, **options)


def test_the_error_names_the_cure(monkeypatch):
    monkeypatch.setattr(trl_prorl.tasks.reasoning_gym, "find_spec", lambda name: None)
    message = "rg:chain_sum needs reasoning-gym, .* `pip install 'trl-prorl.rg.'`"
    with pytest.raises(ValueError, match=message) as error:
        get_task("rg:chain_sum")
    assert "\n" not in str(error.value)


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["tasks", *arguments])
    main()
    return capsys.readouterr().out


def test_list(monkeypatch, capsys):
    out = run(monkeypatch, capsys, "list")
    assert all(name in out for name in [*task_names(), "rg:NAME"])
    assert "http" not in out
    assert "(Cobbe et al., 2021)" in out
    assert "balanced, yes or no? ([]{})` -> `yes`" in out


def test_show(monkeypatch, capsys):
    out = run(monkeypatch, capsys, "show", "parity", "--level", "1", "--split", "test", "-n", "2")
    assert "parity, level 1, test" in out
    assert out.count("ones even or odd?") == 2


def test_show_a_file(monkeypatch, capsys, tmp_path):
    lines = [f'{{"problem": "How much is {i}?", "answer": "{i}"}}\n' for i in range(20)]
    (tmp_path / "problems.jsonl").write_text("".join(lines))
    out = run(monkeypatch, capsys, "show", "math", "--path", str(tmp_path / "problems.jsonl"), "-n", "2")
    assert out.count("How much is") == 2
    assert "math, level 1, train" in out


def test_show_with_options(monkeypatch, capsys):
    options = '{"tasks": {"parity": 1, "sorting": {"weight": 1, "level": 2}}}'
    out = run(monkeypatch, capsys, "show", "mixture", "--options", options, "-n", "4")
    assert out.count("ones even or odd?") == 2
    assert out.count("sort ") == 2


def test_show_prints_square_brackets(monkeypatch, capsys):
    # rich reads "[bold]" as markup unless told otherwise.
    class Bold(GeneratedTask):
        name = "bold"

        def sample(self, rng):
            return f"[bold]{rng.random()}", "[bold]"

    monkeypatch.setattr(trl_prorl.tasks.__main__, "get_task", lambda name: Bold())
    assert run(monkeypatch, capsys, "show", "bold", "-n", "1").count("[bold]") == 2
