"""TRL's trainer and ours beside each other: both are told the same, and both are measured."""

from dataclasses import fields
from pathlib import Path

import pandas as pd
import pytest
from trl import GRPOConfig

from study import beside_trl
from trl_prorl.launch.recipe import parse_recipe
from trl_prorl.launch.recipe_check import read_recipe


ROOT = Path(__file__).parents[2]
WHERE_AND_HOW_OFTEN = {"output_dir", "save_strategy", "save_steps", "save_total_limit"}
# What is printed, and a precision of which the command chooses one.
NOT_OF_THE_WORK = WHERE_AND_HOW_OFTEN | {"log_completions", "num_completions_to_print", "kl_estimator"}
# By its own documentation the correction acts on a KL, and plain has none.
NEEDS_A_KL = {"use_bias_correction_kl"}


def test_trl_is_told_every_key_of_the_recipe_that_it_knows():
    of_trl = {field.name for field in fields(GRPOConfig)}
    of_recipe = set(read_recipe(ROOT / beside_trl.RECIPE))
    assert of_recipe & of_trl <= {*beside_trl.KEYS_OF_TRL} | NOT_OF_THE_WORK | NEEDS_A_KL


def test_trl_s_values_are_the_recipe_s():
    task_args, args, model_args = parse_recipe(["--config", str(ROOT / beside_trl.RECIPE), "--bf16", "false"])
    config = beside_trl.trl_config(args)
    assert type(config) is GRPOConfig
    assert (config.num_generations, config.num_iterations, config.max_completion_length) == (8, 2, 200)
    assert (config.per_device_train_batch_size, config.gradient_accumulation_steps, config.beta) == (4, 8, 0.0)
    assert (config.learning_rate, config.bf16, config.gradient_checkpointing) == (1e-4, False, False)


def test_both_trainers_are_measured_in_two_steps_of_one_batch(monkeypatch, tmp_path):
    """The tiny recipe, so that it takes seconds; the second step uses the batch again, and samples nothing."""
    monkeypatch.setattr(beside_trl, "RECIPE", ROOT / "recipes" / "tiny" / "plain.yaml")
    found = pd.concat([beside_trl.measure(name, ["--run_dir", str(tmp_path / name)]) for name in beside_trl.TRAINERS])
    assert found["trainer"].tolist() == ["TRL", "TRL", "ours", "ours"]
    assert found["step"].tolist() == [1, 2, 1, 2]
    sampling = found["sampling"].tolist()
    assert min(sampling[0], sampling[2]) > 0
    assert sampling[1] == sampling[3] == 0
    assert (found["update"] > 0).all()
    assert found["tokens"].between(1, 12).all()
    lengths = found.groupby("trainer")["tokens"].first()
    assert lengths["TRL"] == pytest.approx(lengths["ours"], rel=0.2)  # the same distribution, 128 texts each
