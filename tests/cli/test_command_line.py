"""The command line: help, keys and recipes that there are, or not, and packages of the user of our names."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from no_libraries import without_libraries
from run_record import error_lines, write_run

import trl_prorl
from trl_prorl import train
from trl_prorl.cli.command_line import check_arguments
from trl_prorl.cli.help import help_text
from trl_prorl.cli.shipped_recipes import recipe_file, shipped_recipes, with_recipe
from trl_prorl.commands import COMMANDS
from trl_prorl.errors import InputError
from trl_prorl.keys import KEYS, TASK_KEYS


ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "recipes" / "grpo_variantA.py")
RECIPE = ROOT / "recipes" / "tiny" / "variantA.yaml"


def test_help_names_every_key_of_ours_and_describes_one():
    done = without_libraries(SCRIPT, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")
    assert {*KEYS, *TASK_KEYS} <= {*done.stdout.split()}
    done = without_libraries(SCRIPT, "--help", "beta_old")
    assert done.stdout.startswith("  --beta_old FLOAT (default: 0.0)\n")
    both = help_text(["--help", "beta_old", "learning_rate"], None, "x")
    assert "\n  --learning_rate FLOAT (default: 1e-06)\n" in both
    assert set(both.splitlines()) < set(help_text(["--help-all"], None, "x").splitlines())
    with pytest.raises(ValueError, match=r"\(did you mean 'beta_old'\?\)"):
        help_text(["--help", "beta_odl"], None, "x")


MISSPELT = [
    (["--beta_odl", "1"], "(did you mean '--beta_old'?)"),
    (["-beta_old=1"], "(did you mean '--beta_old'?)"),
    (["--lr", "1"], "write learning_rate"),
    (["--config", "nowhere.yaml"], "nowhere.yaml"),
    (["--config", "tiny/varianta"], "(did you mean 'tiny/variantA'?)"),
    (["--config"], "--config needs"),
    (["--config", "a.yaml", "--config", "b.yaml"], "given twice"),
    (["--task", "reverse_digit"], "(did you mean 'reverse_digits'?)"),
]


@pytest.mark.parametrize("arguments, told", MISSPELT)
def test_it_is_told_in_one_line_before_anything_is_built(capsys, monkeypatch, arguments, told):
    monkeypatch.setattr(train, "build", None)
    with pytest.raises(SystemExit) as end:
        train.main(RECIPE, arguments)
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    (line,) = error_lines(err)
    assert told in line


@pytest.mark.parametrize("start", [[SCRIPT, "--config"], ["-m", "trl_prorl", "preflight"]])
def test_each_door_refuses_a_misspelt_key_of_a_recipe_before_it_imports_a_library(tmp_path, start):
    (tmp_path / "arm.yaml").write_text("task: sums\nbeta_odl: 1\n")
    done = without_libraries(*start, str(tmp_path / "arm.yaml"))
    assert done.returncode == 2, done.stderr[-2000:]
    (line,) = error_lines(done.stderr)
    assert "unknown key 'beta_odl' (did you mean 'beta_old'?)" in line and "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["train tiny/variantA --output_dir", "passk --run", "report --runs"])
def test_the_first_line_comes_before_any_library(tmp_path, command):
    """Here none can be imported: the line is there, and then the import fails."""
    name, *words = command.split()
    folder = tmp_path / "run"
    if name != "train":
        write_run(folder, {"model_name_or_path": "embedded", "task": "reverse_digits"}, [{"step": 1, "reward": 0.5}])
    env = {"PATH": "", "PYTHONPATH": str(ROOT), "HF_HOME": str(tmp_path / "home")}
    done = without_libraries("-m", "trl_prorl", name, *words, str(folder), env=env)
    assert any(line.startswith(f"{name}: ") for line in done.stderr.splitlines()), done.stderr[-2000:]
    assert done.returncode != 0


def test_variables_of_a_recipe_are_set_before_a_library_reads_them(tmp_path):
    """Some are read when a library is imported, and never again."""
    (tmp_path / "arm.yaml").write_text("task: sums\nenv: {HF_HUB_OFFLINE: 1}\n")
    code = "from trl_prorl.cli.command_line import check_arguments\n"
    code += f"check_arguments(None, [{str(tmp_path / 'arm.yaml')!r}])\n"
    code += "from huggingface_hub import constants\nprint(constants.HF_HUB_OFFLINE)\n"
    env = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_without_a_recipe_there_is_nothing_to_train():
    done = without_libraries("-m", "trl_prorl.train")
    assert done.returncode == 2
    (line,) = error_lines(done.stderr)
    assert "recipe" in line


def test_what_is_right_passes_unchanged():
    arguments = ["--max_steps", "-1", "--lora-target-modules", "q_proj", "v_proj", "--no_dataloader_pin_memory"]
    assert check_arguments(RECIPE, arguments) == ["--config", str(RECIPE), *arguments]


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


@pytest.mark.slow
def test_a_script_beside_such_packages_has_its_own_and_ours(beside):
    """One that is imported before ours and one after; the library imports none of them by itself."""
    done = beside("MINE = True\n", "own.py")
    assert done.returncode == 0 and done.stdout == "reward 1.0\n", done.stderr[-2000:]


COMMAND_LINES = """
import contextlib, io, json, sys
from trl_prorl.commands import COMMANDS, main

pages, heavy = {}, {*sys.argv[1].split()}
for name in COMMANDS:
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        main([name, "--help"])
    pages[name] = shown.getvalue()
for line in ("--version", "", "train", "train --all"):
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
    assert {"plain", "control", "variantA", "variantB", "variantC"} <= {*pages["train"].split()}
    assert {name.rpartition("/")[2] for name in shipped_recipes()} <= {*pages["train --all"].split()}


def test_env_says_what_a_report_of_a_bug_needs():
    env = {**os.environ, "OMP_NUM_THREADS": "3", "HF_TOKEN": "secret"}
    command = [sys.executable, "-m", "trl_prorl", "env"]
    shown = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout
    assert all(package in shown for package in ("TRL", "PyTorch", "Transformers", "PEFT", "trl-prorl"))
    assert "OMP_NUM_THREADS=3" in shown
    assert "secret" not in shown
    (line,) = [line for line in shown.splitlines() if "accelerate launch" in line]
    assert Path(line.partition(": ")[2], "single_gpu.yaml").is_file()


def test_a_recipe_by_its_name_and_by_its_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named = str(recipe_file("tiny/variantA"))
    assert Path(named).samefile(RECIPE)
    assert with_recipe(["tiny/variantA", "--beta", "2"]) == ["--config", named, "--beta", "2"]
    assert with_recipe(["--beta", "2", "--config=tiny/variantA"]) == ["--beta", "2", "--config", named]
    for unchanged in (["--help", "beta_old"], ["--output_dir", "tiny/variantA"], []):
        assert with_recipe(unchanged) == unchanged
    # A file wins, whatever it is called.
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "variantA").write_text("beta: 1.0\n")
    assert with_recipe(["tiny/variantA"]) == ["--config", "tiny/variantA"]


@pytest.mark.parametrize(
    "asked, told",
    [
        (["tiny/varianA"], "(did you mean 'tiny/variantA'?)"),
        (["recipes/tiny/variantB.yaml"], "(did you mean 'tiny/variantB'?)"),
        (["tiny/base"], "'tiny/base'"),
        (["tiny/events"], "trl-prorl train tiny/events/variantA"),
        (["gsm8k"], "trl-prorl train gsm8k/plain"),
        # It would be taken for the value of an option, or left over once everything else is refused.
        (["--beta", "2", "tiny/variantA"], "'tiny/variantA' comes after an option"),
        (["--prompts", "8", "mine.yaml"], "'mine.yaml' comes after an option"),
    ],
)
def test_a_recipe_that_is_not_there_or_comes_too_late(tmp_path, monkeypatch, asked, told):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as caught:
        with_recipe(asked)
    assert told in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("argv", [["own.py"], ["--config", "own.py"], ["--config=own.py"]])
def test_a_script_in_the_place_of_a_recipe_is_named(argv, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("import torch")
    with pytest.raises(InputError, match=r"preflight\(trainer\)"):
        with_recipe(argv)
