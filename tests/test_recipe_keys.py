"""Keys read from the source are those of the imported classes, with their types, their defaults and their options."""

import dataclasses
import typing
from pathlib import Path

import pytest
import yaml
from trl import GRPOConfig, ModelConfig, ScriptArguments

from trl_prorl import ProRLConfig
from trl_prorl.launch.recipe import RecipeParser
from trl_prorl.launch.recipe_check import fits
from trl_prorl.launch.recipe_keys import AnyObject, class_keys, recipe_keys
from trl_prorl.train import TaskArguments


CLASSES = (TaskArguments, ProRLConfig, ModelConfig)
RECIPES = sorted(path for path in (Path(__file__).parent.parent / "recipes").rglob("*.yaml") if path.stem != "matrix")
VALUES = ("", "many", 0, 1, 2.5, True, None, [], ["a"], {}, {"a": 1})


def fields(*classes):
    return {field.name: field for cls in classes for field in dataclasses.fields(cls) if field.init}


def test_the_keys_are_the_fields():
    assert set(recipe_keys()) == set(fields(*CLASSES))


def test_the_options_are_the_parser_s():
    parser = RecipeParser(CLASSES)
    theirs = {flag for action in parser._actions for flag in action.option_strings} - {"-h", "--help"}
    assert {option for key in recipe_keys().values() for option in key.options} == theirs


def test_ours_are_ours():
    ours = {name for name, key in recipe_keys().items() if key.ours}
    added = (set(fields(ProRLConfig)) - set(fields(GRPOConfig))) | (
        set(fields(TaskArguments)) - set(fields(ScriptArguments))
    )
    assert ours == added


def test_every_key_has_a_meaning_and_every_one_of_the_config_its_group():
    assert [name for name, key in recipe_keys().items() if not key.text] == []
    ungrouped = [name for name, key in class_keys("ProRLConfig").items() if key.ours and not key.group]
    assert ungrouped == []


def test_types_accept_and_refuse_what_the_imported_ones_do():
    hints = RecipeParser(CLASSES).hints()
    for name, key in recipe_keys().items():
        if AnyObject in (key.hint, *typing.get_args(key.hint)):
            continue  # a class that is not imported accepts everything
        for value in VALUES:
            here, there = fits(value, key.hint), fits(value, hints[name])
            # A bare on or off is looked at with the imported classes alone.
            assert here == there or isinstance(value, bool), f"{name}: {value!r}"


def test_defaults_as_they_are_spelt_are_the_defaults():
    compared = 0
    for name, field in fields(*CLASSES).items():
        default = recipe_keys()[name].default
        if field.default is dataclasses.MISSING:
            continue
        try:
            value = yaml.safe_load(default) if default not in ("None", "True", "False") else eval(default)
            value = float(value) if isinstance(field.default, float) else value
        except (ValueError, yaml.YAMLError):
            continue  # an expression
        if isinstance(field.default, (bool, int, float, str, type(None))) and type(value) is type(field.default):
            compared += 1
            spelt = field.default.replace("\n", "\\n") if isinstance(field.default, str) else field.default
            assert value == spelt or default == "default_optim", name
    assert compared > 200


def test_a_class_that_has_moved_is_named(monkeypatch):
    monkeypatch.setitem(class_keys.__wrapped__.__globals__["PLACES"], "GRPOConfig", ("trl", "trainer/base_config.py"))
    with pytest.raises(LookupError, match="base_config.py defines no class GRPOConfig"):
        class_keys.__wrapped__("GRPOConfig")
