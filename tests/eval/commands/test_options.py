"""Command lines: options that are spelled in two ways, and refusals that come before slow libraries are imported."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trl_prorl.eval import command_lines
from trl_prorl.eval.command_lines import command


def test_sampling(make_run, make_rows, monkeypatch):
    for name in "abc":
        make_run(name, "A", make_rows(1))
    monkeypatch.chdir(make_run("d", "A", make_rows(1)).parent)
    spellings = {
        "--run a --runs b c --others parity@2": ("abc", ["parity@2"], True),
        "--run a --others parity@2 sorting --no-greedy": ("a", ["parity@2", "sorting"], False),
    }
    for spelling, (runs, others, greedy) in spellings.items():
        args = command_lines.passk(spelling.split())
        assert (args.runs, args.others, args.with_greedy) == ([*map(Path, runs)], others, greedy)
    for parse in (command_lines.passk, command_lines.drift):
        assert parse(["--run", "[a-c]", "d"]).runs == [*map(Path, "abcd")]  # a quoted glob


def test_numbers_with_commas_or_spaces(make_run, make_rows):
    run = ["--run", str(make_run("a", "A", make_rows(1)))]
    for words in ("1,4,8", "1 4 8", "1, 4 8"):
        for parse in (command_lines.passk, command_lines.compare):
            assert parse([*run, "--k", *words.split(" ")]).k == [1, 4, 8]
        assert command_lines.drift([*run, "--checkpoints", *words.split(" ")]).checkpoints == [1, 4, 8]
    assert command_lines.drift([*run, "--checkpoints", "all"]).checkpoints == "all"


def test_a_mistake_of_ours_is_no_bad_input():
    with pytest.raises(ValueError, match="ours"):
        command(lambda argv=None: int("ours"))([])


HEAVY = "torch transformers trl peft datasets evaluate pandas scipy matplotlib"
# One process for all of them, because nothing heavy may be there after the last one either.
LOOK = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from trl_prorl.commands import main

heavy, ends = set(sys.argv[1].split()), []
for words in json.loads(sys.argv[2]):
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as err:
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code
    ends.append([code, err.getvalue(), sorted(heavy & set(sys.modules))])
print(json.dumps(ends))
"""
REFUSED = {
    **{f"{name} --run nowhere": "nowhere" for name in ("passk", "drift", "push", "report", "compare")},
    "passk --run nowhere/*": "nowhere/*",
    "passk --run EMPTY": "config.yaml",
    "passk --nope": "--nope",
    "passk": "--model MODEL",
    "passk --run RUN --n 4 --k 8": "--k",
    "passk --run RUN --k 1,x": "--k 1,x: write whole numbers",
    "drift --run RUN --checkpoints all 4": "--checkpoints all 4",
    "preflight": "recipe",
    "tasks show nope": "nope",
    "tasks show reverse_digits --options []": "--options",
}


def test_refusals(make_run, make_rows, tmp_path):
    make_run("RUN", "A", make_rows(1)).rename(tmp_path / "RUN")
    (tmp_path / "EMPTY").mkdir()
    words = json.dumps([refused.split() for refused in REFUSED])
    done = subprocess.run([sys.executable, "-c", LOOK, HEAVY, words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    for (refused, named), (code, errors, heavy) in zip(REFUSED.items(), json.loads(done.stdout), strict=True):
        assert code == 2 and heavy == [], (refused, errors, heavy)
        assert named in errors and "Traceback" not in errors, (refused, errors)
