"""What `--help` says of the keys is what the classes of a recipe have."""

import dataclasses

from trl import GRPOConfig, ModelConfig, ScriptArguments

from trl_prorl import ProRLConfig
from trl_prorl.launch.command_line import first_look
from trl_prorl.launch.recipe_keys import DECLARE, own_keys, possible_keys, recipe_keys
from trl_prorl.train import TaskArguments


def fields(*classes):
    return {field.name: field for cls in classes for field in dataclasses.fields(cls) if field.init}


def test_the_keys_are_the_fields():
    assert set(recipe_keys()) == set(fields(TaskArguments, ProRLConfig, ModelConfig))
    assert set(own_keys()) == set(fields(TaskArguments, ProRLConfig)) - set(fields(GRPOConfig, ScriptArguments))


def test_every_key_is_possible_and_hardly_any_other_name():
    """A key that was missing here would be refused although it exists."""
    assert possible_keys() >= set(recipe_keys())
    assert len(possible_keys() - set(recipe_keys())) <= 12, possible_keys() - set(recipe_keys())


def test_a_file_that_is_not_where_it_was_refuses_nothing(monkeypatch):
    monkeypatch.setitem(DECLARE, "trl", ("trainer/elsewhere.py",))
    assert possible_keys() == frozenset()
    assert first_look(None, ["--nope", "1"]) == ["--nope", "1"]


def test_every_key_has_a_meaning_and_every_one_of_the_config_its_group():
    assert [name for name, key in recipe_keys().items() if not key.text] == []
    assert {name for name, key in own_keys().items() if not key.group} == set(fields(TaskArguments)) - set(
        fields(ScriptArguments)
    )


def test_types_and_defaults():
    found = {name: (recipe_keys()[name].hint, recipe_keys()[name].default) for name in ("beta_old", "run_dir", "bf16")}
    assert found == {"beta_old": (float, "0.0"), "run_dir": (str | None, "None"), "bf16": (bool | None, "None")}
    assert recipe_keys()["eval_strategy"].default == "'no'" and recipe_keys()["lora_r"].default == "16"
    assert recipe_keys()["lora_target_modules"].hint == list[str] | None
