"""
Recipes parse, and the arms of a folder differ only in the keys that define the variant; what `--help` says of the keys
is what the classes of a recipe have.
"""

import dataclasses
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pytest
import yaml
from trl import GRPOConfig, ModelConfig, ScriptArguments

from trl_prorl import ProRLConfig
from trl_prorl.launch import command_line
from trl_prorl.launch.command_line import check_arguments
from trl_prorl.launch.recipe import RecipeParser
from trl_prorl.launch.recipe_keys import DECLARE, declared_keys, own_keys, recipe_keys
from trl_prorl.launch.recipe_yaml import read_recipe
from trl_prorl.tasks import task_of_recipe
from trl_prorl.train import TaskArguments


RECIPES = Path(__file__).parents[2] / "recipes"
FILES = sorted(path for path in RECIPES.rglob("*.yaml") if path.stem != "base")
# They compare no variants.
QWEN_ON_A_CPU = RECIPES / "gsm8k" / "qwen2.5-coder-1.5b-cpu"
ALONE = [RECIPES / name for name in ("prorl_v2", "prior_art", "keys", "tiny/growth", "tiny/gamed", "tiny/guess")]
ALONE += [QWEN_ON_A_CPU]
FOLDERS = sorted({file.parent for file in FILES} - set(ALONE))
VARIANT_KEYS = {"output_dir", "beta", "beta_old", "kl_target", "kl_horizon", "ref_compute"}
VARIANT_PREFIXES = ("ref_reset_", "optimizer_reset")
# The variant of a published scheme, and of a recipe that shows a key.
OTHERS = {"prorl_v1": "C", "cosmos_rl": "C", "elastic_reset": "elastic", "kimi_k1.5": "B", "rpg_urkl": "B"}
OTHERS |= dict.fromkeys(("prorl_v2", "sync_ref_model", "ema_pg", "async_grpo"), "A")
OTHERS |= dict.fromkeys(("slime", "dr_grpo", "dapo", "gspo", "cispo", "scalerl", "olmo3"), "plain")
OTHERS |= {"restarted_adapter": "C", "reinforce_pp": "control"}
OTHERS |= {"mixture": "A", "adaptive_beta": "control", "base_anchor": "B", "qlora_8bit": "C"}
OTHERS |= dict.fromkeys(("grown", "rank4", "rank16"), "plain")
TRAINING = {"max_completion_length", "learning_rate", "max_steps", "num_iterations", "per_device_train_batch_size"}
EXPECTED = {"plain": "plain", "control": "control", "variantA": "A", "variantB": "B", "variantC": "C"}


def name(path):
    return str(path.relative_to(RECIPES))


def parse(file):
    # A GPU recipe is parsed on any machine.
    argv = ["--config", str(file), "--bf16", "false", "--use_cpu", "true"]
    return RecipeParser((TaskArguments, ProRLConfig, ModelConfig)).parse_args_and_config(argv)[1]


@pytest.mark.parametrize("file", FILES, ids=name)
def test_parses_into_its_variant(file):
    args = parse(file)
    special = {"variantA0": "A", "variantC_keep": "A", "optimizer_only": "optimizer-only", "gsm8k_qwen2.5-0.5b": "A"}
    assert args.variant == (special.get(file.stem) or OTHERS.get(file.stem) or EXPECTED[file.stem.split("_")[0]])


@pytest.mark.parametrize("folder", FOLDERS, ids=name)
def test_arms_of_a_folder_differ_only_in_the_keys_that_define_the_variant(folder):
    recipes = {file.stem: read_recipe(file) for file in FILES if file.parent == folder}
    assert set(EXPECTED) <= set(recipes)

    def defines_the_variant(key):
        return key in VARIANT_KEYS or key.startswith(VARIANT_PREFIXES)

    shared = {stem: {k: v for k, v in keys.items() if not defines_the_variant(k)} for stem, keys in recipes.items()}
    assert all(keys == shared["control"] for keys in shared.values())
    assert len({keys["output_dir"] for keys in recipes.values()}) == len(recipes)
    # A and its control have the same coefficient, C is A but for the optimizer, and B has no reference.
    for key in ("beta", "kl_target", "kl_horizon"):
        assert recipes["variantA"].get(key) == recipes["control"].get(key) == recipes["variantC"].get(key)
    if folder.name != "events":
        assert recipes["variantA"]["ref_reset_every"] == recipes["variantC"]["ref_reset_every"]
    assert "beta" not in recipes["variantB"]
    assert "beta" not in recipes["plain"]


@pytest.mark.parametrize("file", FILES, ids=name)
def test_an_arm_s_own_file_has_what_defines_it_and_no_more(file):
    own = yaml.safe_load(file.read_text())
    if file.parent.name == "prorl_v2":
        assert "base" not in own
        return
    base = yaml.safe_load((file.parent / own.pop("base")).read_text())
    assert len(own) <= (18 if file.parent in ALONE else 7)
    assert not any(base.get(key, ...) == value for key, value in own.items())


def test_the_arms_of_the_qwen_on_a_cpu_differ_in_their_anchor():
    recipes = {file.stem: read_recipe(file) for file in FILES if file.parent == QWEN_ON_A_CPU}
    anchors = {
        "plain": {},
        "control": {"beta": 0.3, "kl_target": 0.011, "kl_horizon": 5},
        "variantA": {"beta": 0.3, "kl_target": 0.011, "kl_horizon": 5, "ref_reset_every": 10},
        "variantB": {"beta_old": 0.02},
    }
    assert recipes.keys() == anchors.keys()
    for arm, keys in recipes.items():
        place = {"output_dir": f"runs/gsm8k/qwen2.5-coder-1.5b-cpu/{arm}"}
        assert keys == {**recipes["plain"], **place, **anchors[arm]}


def test_the_published_schemes_start_where_the_tiny_arms_do():
    """What a scheme may choose is no key of the base; the rest is the tiny recipes'."""
    tiny, own = (read_recipe(RECIPES / folder / "base.yaml") for folder in ("tiny", "prior_art"))
    assert own == {key: value for key, value in tiny.items() if key not in ("kl_estimator", "use_bias_correction_kl")}


def test_the_gamed_recipes_are_the_tiny_ones_with_a_reward_that_can_be_gamed():
    tiny, own = (read_recipe(RECIPES / folder / "base.yaml") for folder in ("tiny", "tiny/gamed"))
    other = {key for key in tiny.keys() | own.keys() if tiny.get(key) != own.get(key)}
    task = {"model_name_or_path", "task", "task_options", "max_completion_length", "learning_rate", "max_steps"}
    assert other == task | {"guard_gap", "guard_gap_action"}
    plain, control = (read_recipe(RECIPES / "tiny" / "gamed" / f"{arm}.yaml") for arm in ("plain", "control"))
    other = {key for key in plain.keys() | control.keys() if plain.get(key) != control.get(key)}
    assert other == {"beta", "kl_target", "output_dir"}


def test_the_guessing_recipes_are_the_tiny_ones_with_a_task_of_several_turns():
    tiny, own = (read_recipe(RECIPES / folder / "base.yaml") for folder in ("tiny", "tiny/guess"))
    other = {key for key in tiny.keys() | own.keys() if tiny.get(key) != own.get(key)}
    assert other <= TRAINING | {"task", "task_level", "task_options"}
    for arm in ("plain", "variantA", "variantB"):
        keys = [read_recipe(RECIPES / folder / f"{arm}.yaml") for folder in ("tiny", "tiny/guess")]
        differ = {key for key in keys[0] | keys[1] if keys[0].get(key) != keys[1].get(key)}
        assert differ == {*other, "output_dir"}


@pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="needs reasoning-gym")
@pytest.mark.skipif(which("bwrap") is None, reason="needs bubblewrap")
def test_the_mix_has_prorl_s_kinds_by_its_numbers_of_problems_and_questions_of_its_own_to_test():
    recipe = read_recipe(RECIPES / "prorl_mix" / "plain.yaml")
    task = task_of_recipe(recipe["task"], options=recipe["task_options"])
    kinds = {"math": 40, "logic": 37, "stem": 25, "code": 24, "instructions": 10}  # thousands of 136
    test = task.rows("test", 136)
    assert Counter(test["task"]) == kinds
    train = task.rows("train", recipe["train_rows"])
    rows = {"train": train, "validation": task.rows("validation", 136), "test": test}
    questions = {split: {row["prompt"][-1]["content"] for row in rows[split]} for split in rows}
    assert {split: len(asked) for split, asked in questions.items()} == {split: len(rows[split]) for split in rows}
    assert questions["train"].isdisjoint(questions["validation"] | questions["test"])
    assert questions["validation"].isdisjoint(questions["test"])


def test_every_variant_has_its_script():
    assert all(f"variant{name}.yaml" in (RECIPES / f"grpo_variant{name}.py").read_text() for name in "ABC")


def fields(*classes):
    return {field.name: field for cls in classes for field in dataclasses.fields(cls) if field.init}


def test_the_keys_are_the_fields():
    assert set(recipe_keys()) == set(fields(TaskArguments, ProRLConfig, ModelConfig))
    assert set(own_keys()) == set(fields(TaskArguments, ProRLConfig)) - set(fields(GRPOConfig, ScriptArguments))


def test_every_key_is_possible_and_hardly_any_other_name():
    """A key that was missing here would be refused although it exists."""
    assert declared_keys().keys() >= recipe_keys().keys()
    extra = declared_keys().keys() - recipe_keys().keys()
    assert len(extra) <= 12, extra


def test_a_file_that_is_not_where_it_was_refuses_nothing(monkeypatch):
    monkeypatch.setitem(DECLARE, "trl", ("trainer/elsewhere.py",))
    monkeypatch.setattr(command_line, "declared_keys", declared_keys.__wrapped__)  # which remembers nothing
    assert command_line.declared_keys() == {}
    assert check_arguments(None, ["--nope", "1"]).argv == ["--nope", "1"]


def test_every_key_has_a_meaning_and_every_one_of_the_config_its_group():
    assert [name for name, key in recipe_keys().items() if not key.text] == []
    assert {name for name, key in own_keys().items() if not key.group} == set(fields(TaskArguments)) - set(
        fields(ScriptArguments)
    )


def test_types_and_defaults():
    found = {name: (recipe_keys()[name].hint, recipe_keys()[name].default) for name in ("beta_old", "run_dir", "bf16")}
    assert found == {"beta_old": (float, "0.0"), "run_dir": (str | None, "None"), "bf16": (bool | None, "None")}
    assert recipe_keys()["eval_strategy"].default == "'no'"
    assert recipe_keys()["lora_r"].default == "16"
    assert recipe_keys()["lora_target_modules"].hint == list[str] | None
