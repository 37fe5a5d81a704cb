"""Three steps of every recipe: small batches and short completions on a CPU, its other keys as they are."""

from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pytest
import yaml
from run_record import read_rows

from trl_prorl.cli.recipe_yaml import read_recipe


ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "recipes"
FILES = sorted(set(RECIPES.rglob("*.yaml")) - set(RECIPES.rglob("base.yaml")))
# `make test` runs these, `make test-slow` all.
FAST = ("tiny/variantA", "gsm8k/prorl_v2", "prior_art/kimi_k1.5", "prior_art/dapo", "tiny/growth/grown")
NEEDS_WORDS = pytest.mark.skipif(find_spec("spellchecker") is None, reason="needs pyspellchecker")
NEEDS_LOGIC = pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="needs reasoning-gym")
NEEDS_SANDBOX = pytest.mark.skipif(which("bwrap") is None, reason="needs bubblewrap")
NEEDS = {"smollm2": [NEEDS_WORDS], "prorl_mix": [NEEDS_LOGIC, NEEDS_SANDBOX]}
SMALL = {
    "bf16": "false",
    "use_cpu": "true",
    "dtype": "float32",
    "gradient_checkpointing": "false",
    "max_steps": 3,
    "train_rows": 2,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_generations": 4,
    "max_completion_length": 4,
    "disable_tqdm": "true",
    "report_to": "none",
}
OTHER_CLOCKS = {"elastic_reset_every": "elastic_reset", "lora_growth_every": "growth"}


def marks(file):
    """Most recipes are slow; some need a package or a program."""
    slow = [] if str(file.relative_to(RECIPES).with_suffix("")) in FAST else [pytest.mark.slow]
    return [*slow, *NEEDS.get(file.parent.name, [])]


def small(recipe):
    """Options that make a recipe small; a reset that comes by the clock comes within its steps."""
    options = dict(SMALL)
    if recipe["model_name_or_path"] == "smollm2":  # which a user installs
        options |= {"model_name_or_path": "embedded", "log_completions": "false"}
    if "ref_model" in recipe:  # an earlier run, or a larger model
        options["ref_model"] = recipe["model_name_or_path"]
    options |= {key: 2 for key in ("ref_reset_every", *OTHER_CLOCKS) if recipe.get(key, 0) > 2}
    if recipe.get("task") == "mixture":
        options["train_rows"] = 16  # each task has some
    if recipe.get("num_generations") == 1:
        options |= {"num_generations": 1, "train_rows": 8}
    if "steps_per_generation" in recipe:
        options |= {"train_rows": recipe["steps_per_generation"], "per_device_train_batch_size": 4}
    if recipe.get("eval_strategy", "no") != "no":
        options |= {"eval_steps": 1, "eval_rows": 1, "per_device_eval_batch_size": 4}
    return [word for key, value in options.items() for word in (f"--{key}", str(value))]


@pytest.mark.parametrize(
    "file", [pytest.param(file, id=str(file.relative_to(RECIPES)), marks=marks(file)) for file in FILES]
)
def test_it_runs(forks, tmp_path, file):
    recipe = read_recipe(file)
    name = file.relative_to(RECIPES).with_suffix("")
    status, written = forks.run(RECIPES / "grpo.py", str(name), *small(recipe), cwd=tmp_path)
    assert status == 0, written[-3000:]
    run = tmp_path / recipe["output_dir"]
    rows = read_rows(run)
    every = recipe.get("steps_per_generation", 1) * recipe.get("num_iterations", 1)
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(row["tokens_generated"] > 0 for row in rows[::every])
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert all(config[key] == recipe[key] for key in ("task", "beta") if key in recipe)
    events = read_rows(run, "events.jsonl")
    resets = [(event["step_applied"], event["optimizer_reset"]) for event in events if event["event"] == "reset"]
    if recipe.get("ref_reset_every"):
        assert resets == [(2, recipe.get("optimizer_reset", "keep"))]
    for kind in (kind for key, kind in OTHER_CLOCKS.items() if recipe.get(key)):
        assert [event["step_applied"] for event in events if event["event"] == kind] == [2]
    assert (run / "adapter_model.safetensors").is_file() == recipe.get("use_peft", False)
