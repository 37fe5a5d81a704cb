"""Recipes parse, and the arms of a folder differ only in the keys that define the variant."""

from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pytest
from trl import ModelConfig

from trl_prorl import ProRLConfig
from trl_prorl.cli.recipe import RecipeParser
from trl_prorl.cli.recipe_yaml import read_recipe
from trl_prorl.tasks import task_of_recipe
from trl_prorl.train import TaskArguments


RECIPES = Path(__file__).parents[2] / "recipes"
FILES = sorted(path for path in RECIPES.rglob("*.yaml") if path.stem != "base")
ARMS = {"plain": "plain", "control": "control", "variantA": "A", "variantB": "B", "variantC": "C"}
FOLDERS = sorted(file.parent for file in FILES if file.stem == "variantC" and file.parent.name != "events")
OF_ITS_OWN = ("cpu", "prorl_v2", "teacher")  # files of a folder that are no arms of it
VARIANT_KEYS = {"output_dir", "beta", "beta_old", "kl_target", "kl_horizon", "ref_compute"}
VARIANT_PREFIXES = ("ref_reset_", "optimizer_reset")


def name(path):
    return str(path.relative_to(RECIPES))


@pytest.mark.parametrize("file", FILES, ids=name)
def test_it_parses_and_an_arm_is_of_its_variant(file):
    argv = ["--config", str(file), "--bf16", "false", "--use_cpu", "true"]  # a GPU recipe on any machine
    args = RecipeParser((TaskArguments, ProRLConfig, ModelConfig)).parse_args_and_config(argv)[1]
    assert file.stem not in ARMS or args.variant == ARMS[file.stem]


@pytest.mark.parametrize("folder", FOLDERS, ids=name)
def test_arms_of_a_folder_differ_only_in_the_keys_that_define_the_variant(folder):
    files = [file for file in FILES if file.parent == folder and file.stem not in OF_ITS_OWN]
    recipes = {file.stem: read_recipe(file) for file in files}

    def defines_the_variant(key):
        return key in VARIANT_KEYS or key.startswith(VARIANT_PREFIXES)

    shared = {stem: {k: v for k, v in keys.items() if not defines_the_variant(k)} for stem, keys in recipes.items()}
    assert all(keys == shared["control"] for keys in shared.values())
    assert len({keys["output_dir"] for keys in recipes.values()}) == len(recipes)
    # A and its control have the same coefficient, C is A but for the optimizer, and B has no reference.
    for key in ("beta", "kl_target", "kl_horizon"):
        assert recipes["variantA"].get(key) == recipes["control"].get(key) == recipes["variantC"].get(key)
    assert recipes["variantA"]["ref_reset_every"] == recipes["variantC"]["ref_reset_every"]


@pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="needs reasoning-gym")
@pytest.mark.skipif(which("bwrap") is None, reason="needs bubblewrap")
def test_the_mix_has_prorl_s_kinds_by_its_numbers_of_problems_and_questions_of_its_own_to_test():
    recipe = read_recipe(RECIPES / "prorl_mix" / "plain.yaml")
    task = task_of_recipe(recipe["task"], options=recipe["task_options"])
    kinds = {"math": 40, "logic": 37, "stem": 25, "code": 24, "instructions": 10}  # thousands of 136
    test = task.rows("test", 136)
    assert Counter(test["task"]) == kinds
    train = task.rows("train", 544)
    rows = {"train": train, "validation": task.rows("validation", 136), "test": test}
    questions = {split: {row["prompt"][-1]["content"] for row in rows[split]} for split in rows}
    assert {split: len(asked) for split, asked in questions.items()} == {split: len(rows[split]) for split in rows}
    assert questions["train"].isdisjoint(questions["validation"] | questions["test"])
    assert questions["validation"].isdisjoint(questions["test"])
