"""The command line: help, keys and recipes that there are, or not, and packages of the user of our names."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from no_libraries import without_libraries
from run_record import write_run

import trl_prorl
from trl_prorl import train
from trl_prorl.commands import COMMANDS
from trl_prorl.keys import KEYS, TASK_KEYS
from trl_prorl.launch.command_line import check_arguments
from trl_prorl.launch.help import help_text
from trl_prorl.launch.shipped_recipes import recipe_file, shipped_recipes, with_recipe


ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "recipes" / "grpo_variantA.py")
RECIPES = ROOT / "recipes"
RECIPE = RECIPES / "tiny" / "variantA.yaml"


def test_help_names_every_key_of_ours():
    done = without_libraries(SCRIPT, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: ")
    assert {*KEYS, *TASK_KEYS} <= {*done.stdout.split()}


def test_what_a_key_means():
    done = without_libraries(SCRIPT, "--help", "beta_old")
    assert done.stdout.startswith("  --beta_old FLOAT (default: 0.0)\n")
    assert "\n  --learning_rate FLOAT (default: 1e-06)\n" in help_text(
        ["--help", "beta_old", "learning_rate"], None, "x"
    )
    with pytest.raises(ValueError, match=r"\(did you mean 'beta_old'\?\)"):
        help_text(["--help", "beta_odl"], None, "x")


MISSPELT = [
    (["--beta_odl", "1"], "(did you mean '--beta_old'?)"),
    (["--beta_odl=1"], "(did you mean '--beta_old'?)"),
    (["-beta_old", "1"], "(did you mean '--beta_old'?)"),
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
    assert err.startswith("error: ") and told in err and err.count("\n") == 1


@pytest.mark.parametrize("command", ["train", "script", "preflight"])
def test_each_door_refuses_a_misspelt_key_of_a_recipe_before_it_imports_a_library(tmp_path, command):
    (tmp_path / "arm.yaml").write_text("task: sums\nbeta_odl: 1\n")
    start = {"script": [SCRIPT, "--config"]}
    done = without_libraries(*start.get(command, ["-m", "trl_prorl", command]), str(tmp_path / "arm.yaml"))
    assert done.returncode == 2, done.stderr[-2000:]
    assert "unknown key 'beta_odl' (did you mean 'beta_old'?)" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["train tiny/variantA --output_dir", "passk --run", "report --runs"])
def test_the_first_line_comes_before_any_library(tmp_path, command):
    """Here none can be imported: the line is there, and then the import fails."""
    name, *words = command.split()
    folder = tmp_path / "run"
    if name != "train":
        config = {"model_name_or_path": "embedded", "task": "reverse_digits"}
        write_run(folder, config, [{"step": 1, "reward": 0.5}])
    env = {"PATH": "", "PYTHONPATH": str(ROOT), "HF_HOME": str(tmp_path / "home")}
    done = without_libraries("-m", "trl_prorl", name, *words, str(folder), env=env)
    assert done.stderr.startswith(f"{name}: "), done.stderr[-2000:]
    assert done.returncode != 0


def test_without_a_recipe_there_is_nothing_to_train():
    done = without_libraries("-m", "trl_prorl.train")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and "recipe" in done.stderr


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
def project(tmp_path):
    """A user's folder with packages of our names."""
    mine = tmp_path / "mine"
    for name in ("tasks", "eval", "recipes"):
        (mine / name).mkdir(parents=True)
        (mine / name / "__init__.py").write_text("MINE = True\n")
    return mine


def run(project, *command, **env):
    env = {**os.environ, "COLUMNS": "120", **env}
    command = [sys.executable, *command]
    return subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def hidden(project):
    """A function that runs a command where Python finds the user's packages first, which refuse to be imported."""
    for package in ("tasks", "eval"):
        (project / package / "__init__.py").write_text("raise ImportError('the folder of the user')\n")
    return lambda *command, **env: run(project, *command, PYTHONPATH=f"{project}{os.pathsep}{ROOT}", **env)


@pytest.mark.slow
def test_a_script_beside_such_packages_has_its_own_and_ours(project):
    """One that is imported before ours and one after; the library imports none of them by itself."""
    (project / "own.py").write_text(OWN)
    done = run(project, "own.py")
    assert done.returncode == 0 and done.stdout == "reward 1.0\n", done.stderr[-2000:]


def test_help_version_and_a_misspelt_command(hidden):
    done = hidden("-m", "trl_prorl", "--version")
    assert (done.returncode, done.stdout) == (0, f"trl-prorl {trl_prorl.__version__}\n")
    done = hidden("-m", "trl_prorl")
    assert done.returncode == 0
    assert all(f"  {name} " in done.stdout for name in COMMANDS)
    done = hidden("-m", "trl_prorl", "pask")
    assert done.returncode == 2
    assert done.stderr.startswith("error: 'pask' is not a command (did you mean 'passk'?)")


def test_env_says_what_a_report_of_a_bug_needs(hidden):
    done = hidden("-m", "trl_prorl", "env", OMP_NUM_THREADS="3", HF_TOKEN="secret")
    assert done.returncode == 0, done.stderr
    assert all(package in done.stdout for package in ("TRL", "PyTorch", "Transformers", "PEFT", "trl-prorl"))
    assert "OMP_NUM_THREADS=3" in done.stdout
    assert "secret" not in done.stdout


HELP = """
import contextlib, io, json, sys
from trl_prorl.commands import COMMANDS, main

pages, heavy = {}, {*sys.argv[1].split()}
for name in COMMANDS:
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        main([name, "--help"])
    pages[name] = shown.getvalue()
print(json.dumps([pages, sorted(heavy & {*sys.modules})]))
"""


def test_no_folder_of_the_user_hides_a_command_and_help_waits_for_no_library(hidden):
    done = hidden("-c", HELP, "torch transformers trl peft datasets evaluate pandas scipy matplotlib", COLUMNS="80")
    assert (done.returncode, done.stderr) == (0, "")
    pages, heavy = json.loads(done.stdout)
    assert pages.keys() == COMMANDS.keys()
    assert not heavy
    assert all(page.startswith(f"usage: trl-prorl {name} ") for name, page in pages.items())


def test_train_lists_the_recipes(hidden):
    done = hidden("-m", "trl_prorl", "train")
    assert (done.returncode, done.stderr) == (0, "")
    assert {"plain", "control", "variantA", "variantB", "variantC"} <= {*done.stdout.split()}
    done = hidden("-m", "trl_prorl", "train", "--all")
    assert (done.returncode, done.stderr) == (0, "")
    listed = {*done.stdout.split()}
    missing = [name for name in shipped_recipes() if name.rpartition("/")[2] not in listed]
    assert missing == []


def test_a_recipe_by_its_name_and_by_its_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named = str(recipe_file("tiny/variantA"))
    assert Path(named).samefile(RECIPE)
    assert with_recipe(["tiny/variantA", "--beta", "2"]) == ["--config", named, "--beta", "2"]
    assert with_recipe(["--beta", "2", "--config=tiny/variantA"]) == ["--beta", "2", "--config", named]
    assert with_recipe(["--help", "beta_old"]) == ["--help", "beta_old"]
    assert with_recipe([]) == []
    # A file wins, whatever it is called.
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "variantA").write_text("beta: 1.0\n")
    (tmp_path / "mine.yaml").write_text("beta: 1.0\n")
    assert with_recipe(["tiny/variantA"]) == ["--config", "tiny/variantA"]
    assert with_recipe(["mine.yaml"]) == ["--config", "mine.yaml"]


@pytest.mark.parametrize(
    "asked, told",
    [
        ("tiny/varianA", "(did you mean 'tiny/variantA'?)"),
        ("recipes/tiny/variantB.yaml", "(did you mean 'tiny/variantB'?)"),
        ("tiny/base", "'tiny/base'"),
        ("tiny/events", "trl-prorl train tiny/events/variantA"),
        ("gsm8k", "trl-prorl train gsm8k/plain"),
        ("gsm8k/qwen2.5-0.5b/plain", "(did you mean 'gsm8k/plain'?)"),
    ],
)
def test_a_recipe_that_is_not_there(tmp_path, monkeypatch, asked, told):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as caught:
        recipe_file(asked)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert asked not in shipped_recipes()


@pytest.mark.parametrize("words", [["--beta", "2", "tiny/variantA"], ["--prompts", "8", "mine.yaml"]])
def test_a_recipe_behind_the_options_is_told_where_it_belongs(words):
    """It would be taken for the value of an option, or left over once everything else is refused."""
    with pytest.raises(ValueError, match=f"^'{words[-1]}' .* first"):
        with_recipe(words)
    assert with_recipe(["--output_dir", "tiny/variantA"]) == ["--output_dir", "tiny/variantA"]
