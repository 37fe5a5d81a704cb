"""The command line: help, before anything is imported that takes seconds, and keys that do not exist."""

import subprocess
import sys
from pathlib import Path

import pytest

from trl_prorl import train
from trl_prorl.launch.command_line import first_look, help_text
from trl_prorl.launch.recipe_keys import own_keys, recipe_keys


ROOT = Path(__file__).parent.parent
SCRIPT = str(ROOT / "recipes" / "grpo_variantA.py")
RECIPE = ROOT / "recipes" / "tiny" / "variantA.yaml"
# An interpreter in which the libraries that take seconds cannot be imported.
WITHOUT = """
import runpy, sys

def hook(event, args):
    if event == "import" and args[0] in ("torch", "transformers", "trl", "peft", "datasets", "numpy", "pandas"):
        raise ImportError(args[0])

sys.addaudithook(hook)
first, *sys.argv = sys.argv[1:]
if first == "-m":
    sys.path.insert(0, "")
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    sys.argv.insert(0, first)
    sys.path.insert(0, first.rpartition("/")[0])
    runpy.run_path(first, run_name="__main__")
"""


def without_libraries(*argv, **kwargs):
    command = [sys.executable, "-c", WITHOUT, *argv]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, **kwargs)


@pytest.mark.parametrize("start", [[SCRIPT], ["-m", "trl_prorl.train"]], ids=["script", "module"])
def test_help_is_one_screen(start):
    done = without_libraries(*start, "--help")
    assert done.returncode == 0 and done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 80
    assert lines[0].startswith("usage: ") and any(line.startswith("  --config RECIPE.yaml") for line in lines)
    words = set(done.stdout.replace(",", " ").replace(".", " ").split())
    assert own_keys().keys() <= words


def test_what_a_key_means():
    done = without_libraries(SCRIPT, "--help", "beta_old", "task")
    said = "  --beta_old FLOAT (default: 0.0)\n      Coefficient of the KL"
    assert done.returncode == 0 and done.stdout.startswith(said) and "\n  --task STR (default: " in done.stdout
    text = help_text(["--help", "beta_old", "learning_rate"], None)
    assert text.startswith(said) and "\n  --learning_rate FLOAT (default: 1e-06)\n" in text
    with pytest.raises(ValueError, match=r"^--help beta_odl: there is no such key \(did you mean 'beta_old'\?\)\.$"):
        help_text(["--help", "beta_odl"], None)


def test_all_keys_ours_first():
    text = help_text(["--help-all"], None)
    assert max(map(len, text.splitlines())) <= 200
    places = {name: text.index(f"\n  --{name} ") for name in recipe_keys()}
    ours = own_keys().keys()
    assert max(places[name] for name in ours) < min(places[name] for name in places.keys() - ours)


def test_a_reader_who_has_seen_enough():
    code = "from trl_prorl.launch.command_line import show; show('usage: \\n' * 10**6)"
    done = subprocess.run(
        ["bash", "-c", f'{sys.executable} -c "{code}" | head -1'], capture_output=True, text=True, check=False
    )
    assert done.stdout == "usage: \n" and done.stderr == ""


MISSPELT = [
    (["--beta_odl", "1"], "unknown option '--beta_odl' (did you mean '--beta_old'?)."),
    (["--beta_odl=1"], "unknown option '--beta_odl=1' (did you mean '--beta_old'?)."),
    (["-beta_old", "1"], "unknown option '-beta_old' (did you mean '--beta_old'?)."),
    (["--lr", "1"], "unknown option '--lr': write learning_rate."),
    (["--config", "misspelt.yaml"], "unknown key 'beta_odl' (did you mean 'beta_old'?)."),
    (["--config", "renamed.yaml"], "unknown key 'torch_dtype': write dtype."),
    (["--config=typed.yaml"], "num_generations=2.5 is a number, and num_generations takes a whole number or null."),
    (["--config", "twice.yaml"], "the key 'beta' is given twice"),
    (["--config", "nowhere.yaml"], "nowhere.yaml: there is no such file."),
    (["--config", "tiny/varianta"], "(did you mean 'tiny/variantA'?)."),
    (["--config"], "--config needs the path of a recipe after it."),
    (["--config", "a.yaml", "--config", "b.yaml"], "--config is given twice; a run has one recipe."),
    (["a.yaml"], "'a.yaml' follows no option: write --config a.yaml."),
]
RECIPES = {"misspelt": "beta_odl: 0.1", "renamed": "torch_dtype: float32", "typed": "num_generations: 2.5"}
RECIPES |= {"twice": "beta: 0.5\nlr: 1\nbeta: 0.7"}


@pytest.mark.parametrize("arguments, message", MISSPELT)
def test_it_is_told_in_one_line_before_anything_is_built(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(train, "build", None)
    for name, text in RECIPES.items():
        (tmp_path / f"{name}.yaml").write_text(f"{text}\n")
    arguments = [a.replace("--config=", f"--config={tmp_path}/") for a in arguments]
    arguments = [str(tmp_path / a) if (tmp_path / a).is_file() else a for a in arguments]
    with pytest.raises(SystemExit) as end:
        train.main(RECIPE, arguments)
    out, err = capsys.readouterr()
    assert end.value.code == 2 and out == ""
    assert err.startswith("error: ") and message in err and err.count("\n") == 1


def test_without_a_recipe_there_is_nothing_to_train():
    done = without_libraries("-m", "trl_prorl.train")
    assert done.returncode == 2 and done.stderr.startswith("error: nothing says what to train: give --config RECIPE.y")


@pytest.mark.parametrize("argv", [["--config", "tiny/variantB"], ["--config=tiny/variantB"]])
def test_a_shipped_recipe_by_its_name(tmp_path, monkeypatch, argv):
    monkeypatch.chdir(tmp_path)
    given = ["--config", str(RECIPE.with_name("variantB.yaml")), "--beta", "1"]
    assert first_look(RECIPE, [*argv, "--beta", "1"]) == given


def test_what_is_right_passes_unchanged():
    arguments = ["--learning_rate", "-1e-4", "--lora-target-modules", "q_proj", "v_proj", "--no_dataloader_pin_memory"]
    assert first_look(RECIPE, arguments) == ["--config", str(RECIPE), *arguments]
    assert first_look(None, [f"--config={RECIPE}", "--beta", "-1"]) == ["--config", str(RECIPE), "--beta", "-1"]
