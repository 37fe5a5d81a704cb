"""Options that are spelled in two ways: every command takes both."""

from pathlib import Path

import pytest

from eval import boundary, command_lines, compare, report, step_cost, trajectory


def test_sampling(make_run, make_rows, monkeypatch):
    for name in "abc":
        make_run(name, "A", make_rows(1))
    monkeypatch.chdir(make_run("d", "A", make_rows(1)).parent)
    args = command_lines.passk(["--run", "a", "--runs", "b", "c", "--other", "parity@2", "--no_greedy"])
    assert (args.runs, args.others, args.with_greedy) == ([Path("a"), Path("b"), Path("c")], ["parity@2"], False)
    args = command_lines.passk(["--run", "a", "--others", "parity@2", "sorting", "--no-greedy"])
    assert (args.runs, args.others, args.with_greedy) == ([Path("a")], ["parity@2", "sorting"], False)
    assert command_lines.passk(["--run", "a"]).with_greedy
    assert command_lines.drift(["--runs", "a", "--run", "b"]).runs == [Path("a"), Path("b")]
    for command in (command_lines.passk, command_lines.drift, command_lines.boundary, command_lines.trajectory):
        assert command(["--run", "[a-c]", "d"]).runs == [*map(Path, "abcd")]  # a quoted glob


def test_step_cost():
    for option in ("--no_generation", "--no-generation"):
        assert step_cost.parse([option, "--device", "cpu"]).no_generation


@pytest.fixture
def runs(make_run, make_rows, passk_result):
    passk = passk_result([0] * 20, [4] * 20)
    result = passk | {"others": {"parity@2": passk_result([8] * 20, [0] * 20)}}
    return [str(make_run(name, "A", make_rows(4), passk=result)) for name in ("x", "y", "z")]


def test_runs(runs, tmp_path):
    """As many runs as one likes after each option, and the option as often as one likes."""
    for pair in (["--run", *runs[:2]], ["--runs", *runs[:2]], ["--run", runs[0], "--runs", runs[1]]):
        assert command_lines.report(pair).folders == [Path(run) for run in runs[:2]]
        for parse in (command_lines.boundary, command_lines.compare):
            assert parse(pair).runs == [Path(run) for run in runs[:2]]
        assert trajectory.main(pair) == 2  # without checkpoints, which is said of the first
    for main, further in ((report.main, ["--out", str(tmp_path)]), (boundary.main, []), (compare.main, [])):
        assert main([*pair, *further]) == 0
    assert sorted(path.parent.name for path in Path(runs[0]).parent.glob("*/boundary.png")) == ["x", "y"]
