"""`trl-prorl` and scripts of one's own where packages of the user are called `tasks` and `eval`."""

import configparser
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trl_prorl.commands import COMMANDS


ROOT = Path(__file__).parent.parent
OWN = """
import tasks, eval
from trl_prorl.train import TaskArguments

assert tasks.MINE and eval.MINE
task = TaskArguments(task="parity", task_level=2).make_task()
row = task.rows("train", 1)[0]
print("reward", task.reward(task.gold(row), row))
assert tasks.MINE and "mine" in tasks.__file__ and sys.modules["tasks"] is tasks
"""


@pytest.fixture
def project(tmp_path):
    """A user's folder with packages `tasks` and `eval`, and the script that an installation puts onto the path."""
    mine = tmp_path / "mine"
    for name in ("tasks", "eval"):
        (mine / name).mkdir(parents=True)
        (mine / name / "__init__.py").write_text("MINE = True\n")
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    name, _, place = setup["options.entry_points"]["console_scripts"].strip().partition(" = ")
    module, function = place.split(":")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / name).write_text(f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n")
    return mine


def run(project, *command, **env):
    env = {**os.environ, "COLUMNS": "120", **env}
    return subprocess.run(
        [sys.executable, *command], cwd=project, env=env, capture_output=True, text=True, check=False
    )


def test_modules_are_hidden_and_the_command_is_not(project):
    script = str(project.parent / "bin" / "trl-prorl")
    done = run(project, "-c", "import tasks; print(tasks.__file__)")
    assert done.stdout.startswith(str(project)), done.stderr  # the situation
    done = run(project, script, "tasks", "show", "parity", "-n", "1")
    assert done.returncode == 0 and "parity, level" in done.stdout, done.stderr
    # Even where Python looks into the working directory first.
    done = run(project, script, "passk", "--run", "nowhere", PYTHONPATH=str(project))
    assert done.returncode == 2 and "run folder 'nowhere' does not exist" in done.stderr, done.stderr


def test_a_script_beside_such_packages_has_its_own_and_ours(project):
    (project / "own.py").write_text("import sys\n" + OWN)
    done = run(project, "own.py")
    assert done.returncode == 0 and done.stdout == "reward 1.0\n", done.stderr[-2000:]


def test_help_and_a_misspelt_command(project):
    script = str(project.parent / "bin" / "trl-prorl")
    done = run(project, script)
    assert done.returncode == 0 and all(f"  {name} " in done.stdout for name in COMMANDS)
    done = run(project, script, "pask")
    assert done.returncode == 2 and done.stderr.startswith("error: 'pask' is not a command (did you mean 'passk'?)")
    done = run(project, script, "train", "--help")
    assert done.returncode == 0 and done.stdout.startswith("usage: trl-prorl train [--config RECIPE.yaml]")


def test_every_command_has_its_main():
    for module, _ in COMMANDS.values():
        path = ROOT / Path(*module.split(".")).with_suffix(".py")
        assert "\ndef main(" in path.read_text(), module
