"""Options that are spelled in two ways: every command takes both."""

from pathlib import Path

import pytest

from eval import boundary, command_lines, compare, report, step_cost, trajectory
from eval.command import command
from trl_prorl.errors import InputError, PushError


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
    for parse in (command_lines.passk, command_lines.drift, command_lines.boundary, command_lines.trajectory):
        assert parse(["--run", "[a-c]", "d"]).runs == [*map(Path, "abcd")]  # a quoted glob


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


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (None, 0, ""),
        (InputError("--k 9: too\n  large"), 2, "error: --k 9: too large\n"),
        (PushError("the Hub answers 500"), 1, "error: the Hub answers 500\n"),
    ],
)
def test_what_goes_wrong_is_one_line_and_a_code(capsys, error, code, said):
    @command
    def main(argv=None):
        if error is not None:
            raise error

    assert main([]) == code
    assert capsys.readouterr().err == said


def test_a_mistake_of_ours_is_no_bad_input():
    @command
    def main(argv=None):
        raise ValueError("ours")

    with pytest.raises(ValueError, match="ours"):
        main()
