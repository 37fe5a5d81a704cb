"""The command line: help, keys and recipes that there are, or not, and packages of the user of our names."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from run_record import error_lines

import trl_prorl
from trl_prorl import train
from trl_prorl.cli.shipped_recipes import shipped_recipes
from trl_prorl.commands import COMMANDS


ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "tiny" / "variantA.yaml"


MISSPELT = [
    (["--beta_odl", "1"], "did you mean 'beta_old'"),
    (["-beta_old=1"], "did you mean 'beta_old'"),
    (["--no_dataloader_pin_memroy"], "--no_dataloader_pin_memroy"),
    (["--lr", "1"], "write learning_rate"),
    (["--kl_", "1"], "kl_target"),  # an abbreviation of several keys
    (["--config", "nowhere.yaml"], "nowhere.yaml"),
    (["--config", "tiny/varianta"], "did you mean 'tiny/variantA'"),
    (["tiny/variantA", "--config", "tiny/plain"], "twice"),
    (["--beta", "2", "tiny/variantA"], "tiny/variantA"),
    (["--task", "reverse_digit"], "did you mean 'reverse_digits'"),
]


@pytest.mark.parametrize("arguments, words", MISSPELT, ids=str)
def test_a_wrong_argument_is_one_line_and_exit_code_two(capsys, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        train.main(RECIPE, arguments)
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    (line,) = [line for line in err.splitlines() if not line.startswith("train: ")]  # the first line of any run
    assert line.startswith("error: ") and words in line
    assert not list(tmp_path.iterdir())


OWN = """
import sys
import eval
import trl_prorl.hub.card, trl_prorl.hub.publish
from trl_prorl import ProRLConfig, ProRLTrainer
from trl_prorl.tasks import get_task
from trl_prorl.train import TaskArguments

assert not {"tasks", "recipes"} & set(sys.modules)
task = TaskArguments(task="parity", task_level=2).make_task()
row = task.rows("train", 1)[0]
print("reward", task.reward(task.gold(row), row))
import tasks
assert tasks.MINE and eval.MINE and "mine" in tasks.__file__ and sys.modules["tasks"] is tasks and get_task("parity")
"""


@pytest.fixture
def beside(tmp_path):
    """A function that runs Python in a user's folder with packages of our names, which hold a line."""

    def run(line, *command, **env):
        for name in ("tasks", "eval", "recipes"):
            (tmp_path / "mine" / name).mkdir(parents=True)
            (tmp_path / "mine" / name / "__init__.py").write_text(line)
        (tmp_path / "mine" / "own.py").write_text(OWN)
        env = {**os.environ, "COLUMNS": "120", **env}
        command = [sys.executable, *command]
        return subprocess.run(command, cwd=tmp_path / "mine", env=env, capture_output=True, text=True, check=False)

    return run


COMMAND_LINES = """
import contextlib, io, json, sys
from trl_prorl.commands import COMMANDS, main

pages, heavy = {}, {*sys.argv[1].split()}
for name in COMMANDS:
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        main([name, "--help"])
    pages[name] = shown.getvalue()
for line in ("--version", "", "train"):
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        assert main(line.split()) == 0
    pages[line] = shown.getvalue()
assert main(["pask"]) == 2
print(json.dumps([pages, sorted(heavy & {*sys.modules})]))
"""
HEAVY = "torch transformers trl peft datasets evaluate pandas scipy matplotlib"


def test_no_folder_of_the_user_hides_a_command_and_help_waits_for_no_library(beside):
    own = {"PYTHONPATH": f"{os.curdir}{os.pathsep}{ROOT}", "COLUMNS": "80"}
    done = beside("raise ImportError('the folder of the user')\n", "-c", COMMAND_LINES, HEAVY, **own)
    assert done.returncode == 0, done.stderr
    (line,) = error_lines(done.stderr)
    assert line.startswith("error: 'pask' is not a command (did you mean 'passk'?)")
    pages, heavy = json.loads(done.stdout)
    assert not heavy
    assert all(pages[name].startswith(f"usage: trl-prorl {name} ") for name in COMMANDS)
    assert pages["--version"] == f"trl-prorl {trl_prorl.__version__}\n"
    assert all(f"  {name} " in pages[""] for name in COMMANDS)
    assert shipped_recipes().keys() <= {*pages["train"].split()}
