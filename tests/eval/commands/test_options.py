"""Command lines: options that are spelled in two ways, and refusals that come before slow libraries are imported."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trl_prorl.errors import InputError, PushError
from trl_prorl.eval import boundary, command_lines, compare, report, step_cost, trajectory
from trl_prorl.eval.command import command


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
        for parse in (command_lines.report, command_lines.compare):
            assert parse(pair).found.folders == [Path(run) for run in runs[:2]]
        assert command_lines.boundary(pair).runs == [Path(run) for run in runs[:2]]
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


ROOT = Path(__file__).parents[3]
HEAVY = "torch transformers trl peft datasets evaluate pandas scipy matplotlib"
# One process for all of them, because nothing heavy may be there after the last one either.
LOOK = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from trl_prorl.commands import main

heavy, found = set(sys.argv[1].split()), []
for words in json.loads(sys.argv[2]):
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code
    found.append([code, out.getvalue(), err.getvalue(), sorted(heavy & set(sys.modules))])
print(json.dumps(found))
"""


def look(commands):
    """Command -> exit code, output, errors, and what of `HEAVY` was imported by it or one before it."""
    words = json.dumps([command.split() for command in commands])
    done = subprocess.run([sys.executable, "-c", LOOK, HEAVY, words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip(commands, json.loads(done.stdout), strict=True))


RECIPE = "tiny/variantA"
READERS = [f"{name} --run nowhere" for name in ("passk", "drift", "boundary", "trajectory", "push")]
READERS += ["report --runs nowhere", "compare --runs nowhere nowhere"]
REFUSED = {
    **dict.fromkeys(READERS, "run folder 'nowhere' does not exist"),
    "passk --run nowhere/*": "--runs 'nowhere/*' matches nothing",
    "passk --run tests": "'tests/config.yaml' is missing",
    "passk --nope": "arguments are required: --run",
    "passk --run RUN --n 300": "--n 300: at least 1 sample",
    "passk --run RUN --others nope": "--others nope: name='nope' is not a task",
    "drift --run RUN --prompts 1": "--prompts 1 must be at least 2",
    "report --runs nowhere/*": "--runs 'nowhere/*' matches nothing",
    "report --runs FOLDER/own": "no run folder with a finished step",
    "compare --runs FOLDER": "'FOLDER/runs/x' is the only run with a finished step",
    "preflight": "nothing says what to look at",
    "tasks show nope": "name='nope' is not a task",
    "step-cost --nope": "unrecognized arguments: --nope",
    "reset-cost --nope": "unrecognized arguments: --nope",
    "gpu-check --parts nope": "invalid choice: 'nope'",
    f"preflight {RECIPE} --nope 1": "unknown option '--nope'",
    f"train {RECIPE} --lerning_rate 1": "unknown option '--lerning_rate' (did you mean '--learning_rate'?)",
    f"preflight {RECIPE} --task nope": "name='nope' is not a task",
    f"train {RECIPE} --task nope": "name='nope' is not a task",
    f"train {RECIPE} --num_generations 3": "num_generations=3 does not divide the 128 completions",
    "train FOLDER/own/KEY.yaml": "KEY.yaml: unknown key 'max_stps' (did you mean 'max_steps'?)",
    "train FOLDER/own/TYPE.yaml": "TYPE.yaml: ref_reset_every=[1] is a list, and ref_reset_every takes a whole number",
}
RECIPES = {"KEY": "beta: 0.1\nmax_stps: 1\n", "TYPE": "ref_reset_every: [1]\n"}


def test_refusals(make_run, make_rows, tmp_path):
    run = str(make_run("x", "A", make_rows(1)))
    (tmp_path / "own").mkdir()
    for name, text in RECIPES.items():
        (tmp_path / "own" / f"{name}.yaml").write_text(text)
    found = look([arguments.replace("RUN", run).replace("FOLDER", str(tmp_path)) for arguments in REFUSED])
    for message, (asked, (code, _, errors, heavy)) in zip(REFUSED.values(), found.items(), strict=True):
        assert (code, heavy) == (2, []), (asked, errors)
        message = message.replace("FOLDER", str(tmp_path))
        assert message in " ".join(errors.split()) and "Traceback" not in errors, (asked, errors)


# By the parser, after its imports.
OF_A_RECIPE = {
    f"preflight {RECIPE} --task=sums:0.5,sorting:0.5": "takes no level",
    f"train {RECIPE} --task=sums:0.5,sorting:0.5": "takes no level",
}


@pytest.mark.parametrize("arguments", OF_A_RECIPE)
def test_refusal_of_a_recipe(forks, arguments):
    status, written = forks.run("-m", "trl_prorl", *arguments.split())
    announced, refused = written.splitlines()
    assert status == 2 and OF_A_RECIPE[arguments] in refused, written[-2000:]
    assert announced.startswith(arguments.partition(" ")[0] + ": ")


@pytest.mark.parametrize("name", ["nope", "rgx:chain_sum", ("a", "b")])
def test_what_is_asked_at_once_is_what_the_registry_says(name):
    from trl_prorl.tasks.registry import check_name, get_task

    with pytest.raises(ValueError) as later:
        get_task(name)
    with pytest.raises(ValueError) as at_once:
        check_name(name)
    assert str(at_once.value) == str(later.value)
