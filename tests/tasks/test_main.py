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
    assert all(name in out for name in [*task_names(), "rg:NAME"])
    assert "http" not in out and "(Cobbe et al., 2021)" in out and "balanced, yes or no? ([]{})` -> `yes`" in out


def test_show(monkeypatch, capsys):
    out = run(monkeypatch, capsys, "show", "parity", "--level", "1", "--split", "test", "-n", "2")
    assert "parity, level 1, test" in out
    assert out.count("ones even or odd?") == 2


def test_show_a_file(monkeypatch, capsys, tmp_path):
    lines = [f'{{"problem": "How much is {i}?", "answer": "{i}"}}\n' for i in range(20)]
    (tmp_path / "problems.jsonl").write_text("".join(lines))
    out = run(monkeypatch, capsys, "show", "math", "--path", str(tmp_path / "problems.jsonl"), "-n", "2")
    assert out.count("How much is") == 2 and "math, level 1, train" in out


def test_show_with_options(monkeypatch, capsys):
    options = '{"tasks": {"parity": 1, "sorting": {"weight": 1, "level": 2}}}'
    out = run(monkeypatch, capsys, "show", "mixture", "--options", options, "-n", "4")
    assert out.count("ones even or odd?") == 2 and out.count("sort ") == 2


def test_show_prints_square_brackets(monkeypatch, capsys):
    # rich reads "[bold]" as markup unless told otherwise.
    class Bold(GeneratedTask):
        name = "bold"

        def sample(self, rng):
            return f"[bold]{rng.random()}", "[bold]"

    monkeypatch.setattr(tasks.__main__, "get_task", lambda name: Bold())
    assert run(monkeypatch, capsys, "show", "bold", "-n", "1").count("[bold]") == 2


def test_errors_are_one_line(monkeypatch, capsys):
    with pytest.raises(SystemExit) as stopped:
        run(monkeypatch, capsys, "show", "parity", "--level", "9")
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "error: level=9: parity has the levels 1 to 8\n"
