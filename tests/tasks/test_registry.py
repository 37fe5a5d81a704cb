import sys

import pytest

import trl_prorl.tasks
import trl_prorl.tasks.__main__
import trl_prorl.tasks.reasoning_gym
from trl_prorl.tasks import Task, get_task, task_names
from trl_prorl.tasks.__main__ import main
from trl_prorl.tasks.registry import task_class


@pytest.mark.parametrize("name", task_names())
def test_every_entry_is_a_task_of_that_name(name):
    assert issubclass(task_class(name), Task)
    assert task_class(name).name == name


@pytest.mark.parametrize(
    "name, options, message",
    [
        *((name, {}, "is not a task") for name in ("rgx:chain_sum", "rg", None)),
        ("revers_digits", {}, "'revers_digits'.*mean 'reverse_digits'"),
        ("sorting", {"levle": 2}, "levle=2 .*'sorting'.*mean 'level'"),
        ("gsm8k", {"level": 1}, "level=1 .*'gsm8k'"),  # options belong to their task
        *(
            (name, {"level": 6, "path": "a.jsonl"}, "level=6 has no effect with path='a.jsonl': remove it")
            for name in ("stem", "code")
        ),
        ("code", {"allow_weak_sandbox": "no"}, "allow_weak_sandbox='no' must be true or false"),
        ("sorting", {"reward": "dist"}, "reward="),
        ("sums", {"reward": "exact"}, "reward=.exact. is not an option"),
        ("reverse_digits", {"reward": "first"}, "reward="),
        ("instructions", {"reward": "half"}, "reward="),
    ],
)
def test_what_is_unknown_is_named_with_the_nearest(name, options, message):
    with pytest.raises(ValueError, match=message):
        get_task(name, **options)


def test_the_error_names_the_cure(monkeypatch):
    monkeypatch.setattr(trl_prorl.tasks.reasoning_gym, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"`pip install 'trl-prorl\[rg\]'`"):
        get_task("rg:chain_sum")


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["tasks", *arguments])
    main()
    return capsys.readouterr().out


def test_list(monkeypatch, capsys):
    out = run(monkeypatch, capsys, "list")
    assert all(name in out for name in [*task_names(), "rg:NAME"])


def test_show_with_options(monkeypatch, capsys):
    options = '{"tasks": {"parity": 1, "sorting": {"weight": 1, "level": 2}}}'
    out = run(monkeypatch, capsys, "show", "mixture", "--options", options, "--split", "test", "-n", "4")
    assert out.count("ones even or odd?") == 2
    assert out.count("sort ") == 2
