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
from trl_prorl.cli.recipe import parse_recipe
from trl_prorl.cli.shipped_recipes import recipe_file, shipped_recipes, with_recipe
from trl_prorl.commands import COMMANDS
from trl_prorl.errors import InputError


ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "recipes" / "grpo_variantA.py")
RECIPE = ROOT / "recipes" / "tiny" / "variantA.yaml"


MISSPELT = [
    (["--beta_odl", "1"], "did you mean 'beta_old'"),
    (["--beta_odl=1"], "did you mean 'beta_old'"),
    (["-beta_old=1"], "did you mean 'beta_old'"),
    (["--no_dataloader_pin_memroy"], "--no_dataloader_pin_memroy"),
    (["--lr", "1"], "write learning_rate"),
    (["--kl_", "1"], "kl_target"),  # an abbreviation of several keys
    (["--config", "nowhere.yaml"], "nowhere.yaml"),
    (["--config", "tiny/varianta"], "did you mean 'tiny/variantA'"),
    (["--config=tiny/varianta"], "did you mean 'tiny/variantA'"),
    (["--config"], "--config"),
    (["tiny/variantA", "--config", "tiny/plain"], "twice"),
    (["--config=tiny/variantA", "--config=tiny/plain"], "twice"),
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


ACCEPTED = [
    (["--beta=2"], {"beta": 2.0}),
    (["--beta-old", "0.5", "--num_iterations", "2"], {"beta_old": 0.5}),
    (["--ref_reset_ev", "7"], {"ref_reset_every": 7}),  # an abbreviation of one key
    (["--no_dataloader_pin_memory"], {"dataloader_pin_memory": False}),
    (["--no-dataloader-pin-memory"], {"dataloader_pin_memory": False}),
    (["--log_completions"], {"log_completions": True}),
    (["--max_steps", "-1"], {"max_steps": -1}),
    (["--run_name", "-- a name"], {"run_name": "-- a name"}),
    (["--run_name=--name"], {"run_name": "--name"}),
]


@pytest.mark.parametrize("arguments, values", ACCEPTED, ids=str)
def test_what_argparse_reads_as_a_key_is_no_misspelt_one(arguments, values):
    args = parse_recipe(["--config", str(RECIPE), *arguments])[1]
    assert {key: getattr(args, key) for key in values} == values


def test_a_misspelt_key_of_a_recipe_or_its_base_is_named_with_its_file(tmp_path):
    (tmp_path / "base.yaml").write_text("task: sums\nbeta_odl: 1\n")
    (tmp_path / "recipe.yaml").write_text("base: base.yaml\n")
    with pytest.raises(InputError, match=r"base\.yaml: .*beta_odl.*did you mean 'beta_old'"):
        parse_recipe(["--config", str(tmp_path / "recipe.yaml")])


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


def test_without_a_recipe_there_is_nothing_to_train():
    done = without_libraries("-m", "trl_prorl.train")
    assert done.returncode == 2
    (line,) = error_lines(done.stderr)
    assert "recipe" in line


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
    "name, words",
    [
        ("tiny/varianA", "did you mean 'tiny/variantA'"),
        ("recipes/tiny/variantB.yaml", "did you mean 'tiny/variantB'"),
        ("tiny/base", "'tiny/base'"),  # what recipes share is none
    ],
)
def test_a_recipe_that_is_not_there_is_one_line(tmp_path, monkeypatch, name, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as error:
        with_recipe([name])
    assert words in str(error.value) and "\n" not in str(error.value)
