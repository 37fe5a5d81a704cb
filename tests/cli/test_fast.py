"""`fast`: what it switches on, what wins over it, and that a run which is possible without it is possible with it."""

import json
from pathlib import Path

import pytest
import yaml
from peft import LoraConfig
from run_record import read_rows, without_times
from trl import ModelConfig

from trl_prorl import ProRLConfig
from trl_prorl.cli.recipe import RecipeParser
from trl_prorl.train import TaskArguments


BASE = {"bf16": False, "use_cpu": True, "report_to": "none", "per_device_train_batch_size": 8, "num_generations": 4}
BY_HAND = {"reuse_old_logps": True, "pack_groups": "on", "compact_generation": "on"}
FAST = {"reuse_old_logps": True, "pack_groups": "auto", "compact_generation": "auto"}
OFF = {"reuse_old_logps": False, "pack_groups": "off", "compact_generation": "off"}


def of(args):
    return {key: getattr(args, key) for key in OFF}


def parsed(parser, recipe, *options):
    return parser((TaskArguments, ProRLConfig, ModelConfig)).parse_args_and_config(["--config", str(recipe), *options])


def execution(trainer):
    return json.loads(Path(trainer.args.output_dir, "env.json").read_text())["execution"]


def rows(trainer):
    return without_times(read_rows(trainer))


@pytest.fixture
def recipe(tmp_path):
    """A function that writes a recipe with these keys."""

    def write(**keys):
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({**BASE, **keys}))
        return tmp_path / "recipe.yaml"

    return write


@pytest.mark.parametrize("by_hand", [{}, {"pack_groups": "off"}, BY_HAND, OFF], ids=str)
def test_a_key_set_by_hand_wins(by_hand, recipe):
    """Its default, too: in a script, in a recipe, on the command line."""
    assert of(ProRLConfig(fast=True, **BASE, **by_hand)) == FAST | by_hand
    assert of(parsed(RecipeParser, recipe(fast=True, **by_hand))[1]) == FAST | by_hand
    assert of(parsed(RecipeParser, recipe(fast=True, **by_hand), "--fast", "false")[1]) == OFF | by_hand
    options = [word for key, value in by_hand.items() for word in (f"--{key}", str(value))]
    assert of(parsed(RecipeParser, recipe(fast=False), "--fast", "true", *options)[1]) == FAST | by_hand


ARMS = {
    "A": {"beta": 0.1, "ref_reset_every": 2},
    "C, full": {"beta": 0.1, "ref_reset_every": 2, "optimizer_reset": "hard", "lora": False},
}


@pytest.mark.parametrize("arm", ARMS)
def test_the_numbers_are_those_of_the_keys_set_by_hand(run, largest_difference, caplog, arm):
    fast = run(fast=True, **ARMS[arm])
    by_hand = run(**BY_HAND, **ARMS[arm])
    assert rows(fast) == rows(by_hand)
    assert largest_difference(fast, by_hand) == 0.0
    assert execution(fast) == execution(by_hand)
    assert execution(fast)["packing"] == "on"
    assert "Running without" not in caplog.text


WITH_DROPOUT = {"peft_config": LoraConfig(r=4, target_modules=["q_proj"], lora_dropout=0.1)}
EAGER = {"attn_implementation": "eager"}
GUIDED = {"guidance_scale": 1.5}
TWO_STEPS = {"steps_per_generation": 2, "per_device_train_batch_size": 4}
# Keys, what is not possible with them, and why.
WHY = {
    "dropout of LoRA": ({"trainer_kwargs": WITH_DROPOUT}, "all", "dropout rate of 0.1"),
    "dropout of attention": ({"model_init_kwargs": {"attention_dropout": 0.1}}, "all", "random in training mode"),
    "other attention": ({"model_init_kwargs": EAGER}, "packing", "attn_implementation='eager'"),
    "an update in the first pass": (TWO_STEPS, "old_logps", "steps=1 is not a multiple of steps_per_gen"),
    "another loop": ({"generation_kwargs": GUIDED}, "compact_generation", "guidance_scale"),
}


@pytest.mark.parametrize("keys, what, reason", WHY.values(), ids=WHY)
def test_what_is_not_possible_falls_back_and_says_why(run, largest_difference, keys, what, reason, caplog):
    """In one line; the numbers are those without the key, where everything falls back."""
    fast = run(fast=True, max_steps=2, **keys)
    ways = execution(fast)
    for name in ("old_logps", "packing", "compact_generation") if what == "all" else (what,):
        assert ways[name].startswith(("off: ", "forward: ")) and reason in ways[name], (name, ways)
    lines = [record.getMessage() for record in caplog.records if "Running without" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].count(reason) == 1
    if what == "all":
        assert fast.args.is_trl
        assert largest_difference(fast, run(max_steps=2, **keys)) == 0.0
    config = yaml.safe_load(Path(fast.args.output_dir, "config.yaml").read_text())
    assert {key: config[key] for key in FAST} == FAST
    assert config["fast"] is True


def test_a_resume_with_the_same_acceleration_is_the_same_run(run, make_trainer, tmp_path):
    """With another one it is another run."""
    keys = {"output_dir": str(tmp_path / "run"), "save_strategy": "steps", "save_steps": 2, "beta": 0.1}
    whole = run(max_steps=4, fast=True, **{**keys, "output_dir": str(tmp_path / "whole")})
    run(max_steps=2, fast=True, **keys)
    with pytest.raises(ValueError, match="compact_generation: '(auto|on)' -> 'off'"):
        make_trainer(max_steps=4, **keys).train(resume_from_checkpoint=True)
    resumed = make_trainer(max_steps=4, fast=True, **keys)
    resumed.train(resume_from_checkpoint=True)
    assert rows(resumed) == rows(whole)
