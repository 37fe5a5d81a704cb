"""The command line: help, keys and recipes that there are, or not, and packages of the user of our names."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from no_libraries import without_libraries

from trl_prorl import train
from trl_prorl.commands import COMMANDS
from trl_prorl.launch.command_line import check_arguments, help_text
from trl_prorl.launch.recipe_keys import own_keys, recipe_keys
from trl_prorl.launch.shipped_recipes import recipe_file, shipped_recipes, with_recipe


ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "recipes" / "grpo_variantA.py")
RECIPE = ROOT / "recipes" / "tiny" / "variantA.yaml"


@pytest.mark.parametrize("start", [[SCRIPT], ["-m", "trl_prorl.train"]], ids=["script", "module"])
def test_help_is_one_screen(start):
    done = without_libraries(*start, "--help")
    assert done.returncode == 0
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("usage: ")
    assert any(line.startswith("  --config RECIPE.yaml") for line in lines)
    words = set(done.stdout.replace(",", " ").replace(".", " ").split())
    assert own_keys().keys() <= words


def test_what_a_key_means():
    done = without_libraries(SCRIPT, "--help", "beta_old", "task")
    said = "  --beta_old FLOAT (default: 0.0)\n      Coefficient of the KL"
    assert done.returncode == 0
    assert done.stdout.startswith(said)
    assert "\n  --task STR (default: " in done.stdout
    text = help_text(["--help", "beta_old", "learning_rate"], None)
    assert text.startswith(said)
    assert "\n  --learning_rate FLOAT (default: 1e-06)\n" in text
    with pytest.raises(ValueError, match=r"^--help beta_odl: there is no such key \(did you mean 'beta_old'\?\)\.$"):
        help_text(["--help", "beta_odl"], None)


def test_all_keys_ours_first():
    text = help_text(["--help-all"], None)
    assert max(map(len, text.splitlines())) <= 200
    places = {name: text.index(f"\n  --{name} ") for name in recipe_keys()}
    ours = own_keys().keys()
    assert max(places[name] for name in ours) < min(places[name] for name in places.keys() - ours)


MISSPELT = [
    (["--beta_odl", "1"], "unknown option '--beta_odl' (did you mean '--beta_old'?)."),
    (["--beta_odl=1"], "unknown option '--beta_odl=1' (did you mean '--beta_old'?)."),
    (["-beta_old", "1"], "unknown option '-beta_old' (did you mean '--beta_old'?)."),
    (["--lr", "1"], "unknown option '--lr': write learning_rate."),
    (["--config", "renamed.yaml"], "unknown key 'torch_dtype': write dtype."),
    (["--config=typed.yaml"], "num_generations=2.5 is a number, and num_generations takes a whole number or null."),
    (["--config", "nowhere.yaml"], "nowhere.yaml: there is no such file."),
    (["--config", "tiny/varianta"], "(did you mean 'tiny/variantA'?)."),
    (["--config"], "--config needs the path of a recipe after it."),
    (["--config", "a.yaml", "--config", "b.yaml"], "--config is given twice; a run has one recipe."),
    (["a.yaml"], "'a.yaml' follows no option: write --config a.yaml."),
]
BAD_RECIPES = {"renamed": "torch_dtype: float32", "typed": "num_generations: 2.5"}


@pytest.mark.parametrize("arguments, message", MISSPELT)
def test_it_is_told_in_one_line_before_anything_is_built(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(train, "build", None)
    for name, text in BAD_RECIPES.items():
        (tmp_path / f"{name}.yaml").write_text(f"{text}\n")
    arguments = [a.replace("--config=", f"--config={tmp_path}/") for a in arguments]
    arguments = [str(tmp_path / a) if (tmp_path / a).is_file() else a for a in arguments]
    with pytest.raises(SystemExit) as end:
        train.main(RECIPE, arguments)
    out, err = capsys.readouterr()
    assert end.value.code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


def test_without_a_recipe_there_is_nothing_to_train():
    done = without_libraries("-m", "trl_prorl.train")
    assert done.returncode == 2
    assert done.stderr.startswith("error: nothing says what to train: give --config RECIPE.y")


def test_what_is_right_passes_unchanged():
    arguments = ["--max_steps", "-1", "--lora-target-modules", "q_proj", "v_proj", "--no_dataloader_pin_memory"]
    assert check_arguments(RECIPE, arguments).argv == ["--config", str(RECIPE), *arguments]
    for given in ([f"--config={RECIPE}"], ["--config", "tiny/variantA"], ["--config=tiny/variantA"]):
        endless = ["--max_steps", "-1"]
        assert check_arguments(None, [*given, *endless]).argv == ["--config", str(RECIPE), *endless]


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


def test_help_and_a_misspelt_command(hidden):
    done = hidden("-m", "trl_prorl")
    assert done.returncode == 0
    assert all(f"  {name} " in done.stdout for name in COMMANDS)
    done = hidden("-m", "trl_prorl", "pask")
    assert done.returncode == 2
    assert done.stderr.startswith("error: 'pask' is not a command (did you mean 'passk'?)")


def test_env_says_what_a_report_of_a_bug_needs(hidden):
    done = hidden("-m", "trl_prorl", "env", OMP_NUM_THREADS="3", HF_TOKEN="secret")
    assert done.returncode == 0, done.stderr
    for package in ("TRL", "PyTorch", "Transformers", "PEFT", "trl-prorl"):
        assert f"- {package} version: " in done.stdout
    assert f"- CPU: {os.cpu_count()} cores" in done.stdout
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


def test_no_folder_of_the_user_hides_a_command_whose_help_is_one_screen(hidden):
    done = hidden("-c", HELP, "torch transformers trl peft datasets evaluate pandas scipy matplotlib", COLUMNS="80")
    assert (done.returncode, done.stderr) == (0, "")
    pages, heavy = json.loads(done.stdout)
    assert pages.keys() == COMMANDS.keys()
    assert not heavy
    for name, page in pages.items():
        lines = page.splitlines()
        assert lines[0].startswith(f"usage: trl-prorl {name} ")
        assert len(lines) <= 40 and max(map(len, lines)) <= 80, name


@pytest.mark.slow
def test_the_memory_of_a_step_where_the_user_has_such_packages(hidden):
    options = "--mode memory --arms B --rounds 1 --prompts 1 --num_generations 2 --micro_batch 2 --scale 0.1"
    done = hidden("-m", "trl_prorl", "step-cost", *options.split(), "--no-generation", "--device", "cpu")
    assert done.returncode == 0 and "peak GiB" in done.stdout, done.stderr[-2000:]


def test_train_alone_is_one_screen_of_families_and_arms(hidden):
    done = hidden("-m", "trl_prorl", "train")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) < 80
    families = lines[lines.index("Families:") + 1 : lines.index("Arms:") - 1]
    listed = lines[lines.index("Arms:") + 1 : lines.index("Arms:") + 6]
    arms = {line.split()[0] for line in listed}
    assert arms == {"plain", "control", "variantA", "variantB", "variantC"}
    for line in families:
        family, *text = line.split()
        missing = {text[-1]} if text[-2] == "without" else set()
        assert arms - missing == arms & {file.stem for file in (RECIPES / family).glob("*.yaml")}
    assert "`trl-prorl train --all`" in done.stdout


def test_train_all_lists_every_recipe_with_a_whole_sentence(hidden):
    done = hidden("-m", "trl_prorl", "train", "--all")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) < 80
    listed = {}
    folder = recipe = ""
    for line in lines[3:]:
        if line.startswith(" " * 23):
            listed[recipe].append(line.strip())
        elif line.startswith("    "):
            stem, text = line.split(maxsplit=1)
            recipe = f"{folder}{stem}"
            listed[recipe] = [text]
        elif line.startswith("  "):
            folder = line.strip()
    for recipe, text in listed.items():
        comment = re.match("(?:#.*\n)+", (RECIPES / f"{recipe}.yaml").read_text())[0]
        comment = " ".join(line.lstrip("# ") for line in comment.splitlines())
        said = " ".join(text)
        assert comment.startswith(said) and said.endswith((".", "?")), recipe
    arms = {file for file in RECIPES.rglob("*.yaml") if file.stem != "base"}
    assert listed.keys() == {str(file.relative_to(RECIPES).with_suffix("")) for file in arms}
    assert listed["keys/mixture"][0].startswith("Two levels of a task in one run")
    assert len(listed) >= 44


def test_a_recipe_by_its_name_and_by_its_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert recipe_file("tiny/variantC_soft0.1") == RECIPES / "tiny" / "variantC_soft0.1.yaml"
    named = ["--config", str(RECIPES / "tiny" / "variantA.yaml")]
    assert with_recipe(["tiny/variantA", "--beta", "2"]) == [*named, "--beta", "2"]
    assert with_recipe(["--beta", "2", "--config=tiny/variantA"]) == ["--beta", "2", *named]
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
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert asked not in shipped_recipes()


@pytest.mark.parametrize("words", [["--beta", "2", "tiny/variantA"], ["--prompts", "8", "mine.yaml"]])
def test_a_recipe_behind_the_options_is_told_where_it_belongs(words):
    """It would be taken for the value of an option, or left over once everything else is refused."""
    with pytest.raises(ValueError, match=f"^'{words[-1]}' follows no option: the recipe comes first"):
        with_recipe(words)
    assert with_recipe(["--output_dir", "tiny/variantA"]) == ["--output_dir", "tiny/variantA"]
