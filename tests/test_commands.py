"""`trl-prorl` and scripts of one's own where packages of the user are called `tasks` and `eval`."""

import configparser
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trl_prorl.commands import COMMANDS
from trl_prorl.launch.shipped_recipes import recipe_file, shipped_recipes, with_recipe


ROOT = Path(__file__).parent.parent
RECIPES = ROOT / "recipes"
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
def project(tmp_path):
    """A user's folder with packages of our names, and the script that an installation puts onto the path."""
    mine = tmp_path / "mine"
    for name in ("tasks", "eval", "recipes"):
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


@pytest.mark.slow
def test_a_script_beside_such_packages_has_its_own_and_ours(project):
    """One that is imported before ours and one after; the library imports none of them by itself."""
    (project / "own.py").write_text(OWN)
    done = run(project, "own.py")
    assert done.returncode == 0 and done.stdout == "reward 1.0\n", done.stderr[-2000:]


def test_help_and_a_misspelt_command(project):
    script = str(project.parent / "bin" / "trl-prorl")
    done = run(project, script)
    assert done.returncode == 0 and all(f"  {name} " in done.stdout for name in COMMANDS)
    done = run(project, script, "pask")
    assert done.returncode == 2 and done.stderr.startswith("error: 'pask' is not a command (did you mean 'passk'?)")


def test_env_says_what_a_report_of_a_bug_needs(project):
    done = run(project, str(project.parent / "bin" / "trl-prorl"), "env", OMP_NUM_THREADS="3", HF_TOKEN="secret")
    assert done.returncode == 0, done.stderr
    for package in ("TRL", "PyTorch", "Transformers", "PEFT", "trl-prorl"):
        assert f"- {package} version: " in done.stdout
    assert f"- CPU: {os.cpu_count()} cores" in done.stdout and "OMP_NUM_THREADS=3" in done.stdout
    assert "secret" not in done.stdout


def test_every_command_has_its_main():
    for module, _ in COMMANDS.values():
        path = Path(*module.split(".")).with_suffix(".py")
        (found,) = (place / path for place in (ROOT, ROOT / "trl_prorl") if (place / path).is_file())
        assert "\ndef main(" in found.read_text(), module


HELP = """
import contextlib, io, json, sys
from trl_prorl.commands import COMMANDS, main

pages = {}
for name in COMMANDS:
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        main([name, "--help"])
    pages[name] = shown.getvalue()
print(json.dumps(pages))
"""


def test_no_folder_of_the_user_hides_a_command_whose_help_is_one_screen(project):
    """The user's packages refuse to be imported, and Python looks into the working directory first."""
    for package in ("tasks", "eval"):
        (project / package / "__init__.py").write_text("raise ImportError('the folder of the user')\n")
    done = run(project, "-c", HELP, COLUMNS="80", PYTHONPATH=f"{project}{os.pathsep}{ROOT}")
    assert (done.returncode, done.stderr) == (0, "")
    pages = json.loads(done.stdout)
    assert pages.keys() == COMMANDS.keys()
    for name, page in pages.items():
        lines = page.splitlines()
        assert lines[0].startswith(f"usage: trl-prorl {name} ")
        assert len(lines) <= 40 and max(map(len, lines)) <= 80, name


@pytest.mark.slow
def test_the_memory_of_a_step_where_the_user_has_such_packages(project):
    for package in ("tasks", "eval"):
        (project / package / "__init__.py").write_text("raise ImportError('the folder of the user')\n")
    options = "--mode memory --arms B --rounds 1 --prompts 1 --num_generations 2 --micro_batch 2 --scale 0.1"
    command = ["-m", "trl_prorl", "step-cost", *options.split(), "--no-generation", "--device", "cpu"]
    done = run(project, *command, PYTHONPATH=f"{project}{os.pathsep}{ROOT}")
    assert done.returncode == 0 and "peak GiB" in done.stdout, done.stderr[-2000:]


def test_train_alone_lists_the_recipes(project):
    done = run(project, str(project.parent / "bin" / "trl-prorl"), "train")
    assert done.returncode == 0 and done.stderr == ""
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) < 80
    listed, folder = set(), ""
    for line in lines:
        if line.startswith("    "):
            stem, _, what = line.strip().partition(" ")
            listed.add(f"{folder}{stem}")
            comment = (RECIPES / f"{folder}{stem}.yaml").read_text().split("\n")[0]
            assert what.strip(" …") and f"# {what.strip(' …')}" in comment
        elif line.startswith("  "):
            folder = line.strip()
    arms = {file for file in RECIPES.rglob("*.yaml") if file.stem != "base" and file.parent != RECIPES / "study"}
    assert listed == {str(file.relative_to(RECIPES).with_suffix("")) for file in arms} and len(listed) >= 44


def test_a_recipe_by_its_name_and_by_its_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert recipe_file("tiny/variantC_soft0.1") == RECIPES / "tiny" / "variantC_soft0.1.yaml"
    named = ["--config", str(RECIPES / "tiny" / "variantA.yaml")]
    assert with_recipe(["tiny/variantA", "--beta", "2"]) == [*named, "--beta", "2"]
    assert with_recipe(["--beta", "2", "--config=tiny/variantA"]) == ["--beta", "2", *named]
    assert with_recipe(["--help", "beta_old"]) == ["--help", "beta_old"] and with_recipe([]) == []
    # A file wins, whatever it is called.
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "variantA").write_text("beta: 1.0\n")
    (tmp_path / "mine.yaml").write_text("beta: 1.0\n")
    assert with_recipe(["tiny/variantA"]) == ["--config", "tiny/variantA"]
    assert with_recipe(["mine.yaml"]) == ["--config", "mine.yaml"]


@pytest.mark.parametrize(
    "asked, told",
    [
        ("tiny/varianA", "(did you mean 'tiny/variantA'?). `trl-prorl train` lists those."),
        ("recipes/tiny/variantB.yaml", "(did you mean 'tiny/variantB'?). `trl-prorl train` lists those."),
        ("none.yaml", "'none.yaml' is neither a file nor the name of a shipped recipe."),
        ("tiny/base", "'tiny/base' is neither a file nor the name of a shipped recipe"),
        ("study/matrix", "'study/matrix' is neither a file nor the name of a shipped recipe"),
        ("tiny/events", "is a folder of recipes: name one of tiny/events/control, tiny/events/plain,"),
    ],
)
def test_a_recipe_that_is_not_there(tmp_path, monkeypatch, asked, told):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as caught:
        recipe_file(asked)
    assert told in str(caught.value) and "\n" not in str(caught.value)
    assert asked not in shipped_recipes()


@pytest.mark.parametrize("words", [["--beta", "2", "tiny/variantA"], ["--prompts", "8", "mine.yaml"]])
def test_a_recipe_behind_the_options_is_told_where_it_belongs(words):
    """It would be taken for the value of an option, or left over once everything else is refused."""
    with pytest.raises(ValueError, match=f"^'{words[-1]}' follows no option: the recipe comes first"):
        with_recipe(words)
    assert with_recipe(["--output_dir", "tiny/variantA"]) == ["--output_dir", "tiny/variantA"]
