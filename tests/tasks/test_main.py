import sys

import pytest

import tasks.__main__
from tasks import task_names
from tasks.__main__ import main
from tasks.generated import GeneratedTask


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["tasks", *arguments])
    main()
    return capsys.readouterr().out


def test_list(monkeypatch, capsys):
    out = run(monkeypatch, capsys, "list")
    assert all(name in out for name in task_names())


def test_show(monkeypatch, capsys):
    out = run(monkeypatch, capsys, "show", "parity", "--level", "1", "--split", "test", "-n", "2")
    assert "parity, level 1, test" in out
    assert out.count("ones even or odd?") == 2


def test_show_prints_square_brackets(monkeypatch, capsys):
    # rich reads "[bold]" as markup unless told otherwise.
    class Bold(GeneratedTask):
        name = "bold"

        def sample(self, rng):
            return f"[bold]{rng.random()}", "[bold]"

    monkeypatch.setattr(tasks.__main__, "get_task", lambda name: Bold())
    assert run(monkeypatch, capsys, "show", "bold", "-n", "1").count("[bold]") == 2


def test_errors_are_one_line(monkeypatch, capsys):
    with pytest.raises(SystemExit, match="level=9: parity has the levels 1 to 8"):
        run(monkeypatch, capsys, "show", "parity", "--level", "9")
