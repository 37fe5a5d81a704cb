"""Trials of families that are not listed, on a tiny model of the same class."""

from contextlib import nullcontext

import pytest
import torch
from packed_models import MOE, build, padded_logps
from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer

from trl_prorl import preflight
from trl_prorl.fast.trial import tiny_config, tiny_model, trial_obstacle


class OneProcess:
    mixed_precision = "no"
    autocast = staticmethod(nullcontext)


def padded(model, *rows):
    return padded_logps(model, *rows)[0]


def tried(model):
    """What is found against packed rows, and against compact samples."""
    return [trial_obstacle(name, model, padded, OneProcess) for name in ("shared_prompts", "compact")]


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("kind", ["olmo2", "starcoder2", "ernie4_5"])
def test_a_family_that_serves_is_found_to(kind, lora):
    model = build(kind)
    if lora:
        model = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear"))
    assert tried(model) == [None, None]


@pytest.mark.parametrize("kind", ["hunyuan_v1_dense", "hunyuan_v1_moe"])
def test_a_family_to_which_absolute_positions_matter_is_found(kind):
    """It normalises queries and keys after their rotation; as initialised, norms commute with one."""
    packing, _ = tried(build(kind, head_dim=8, **MOE))
    assert "differ from those in padded rows" in packing


def test_the_model_and_the_random_numbers_stay(make_trainer):
    model = get_peft_model(build("olmo2"), LoraConfig(r=2, target_modules="all-linear"))
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    modules = [(id(module), type(module), module.training) for module in model.modules()]
    state = torch.get_rng_state()
    tried(model)
    assert torch.equal(state, torch.get_rng_state())
    assert [(id(module), type(module), module.training) for module in model.modules()] == modules
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_a_tiny_model_has_every_kind_of_layer_and_no_more():
    types = ["full_attention"] * 12
    types[4] = "sliding_attention"
    sizes = {"num_hidden_layers": 12, "layer_types": types, "use_sliding_window": True, "sliding_window": 8}
    model = build("qwen2", hidden_size=256, vocab_size=3000, **sizes)
    config = tiny_model(model).config
    assert config.layer_types == types[:5]
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (5, 64, 512)
    assert (model.config.num_hidden_layers, model.config.hidden_size) == (12, 256)
    assert tiny_config(build("qwen2", num_hidden_layers=6).config, ()).num_hidden_layers == 2


@pytest.fixture
def unlisted(tiny_model):
    tokens = AutoTokenizer.from_pretrained(tiny_model)
    sizes = {"vocab_size": len(tokens), "pad_token_id": tokens.pad_token_id}
    return lambda kind, **keys: build(kind, **sizes, **keys)


def test_a_family_of_fast_models_is_served_where_the_trial_succeeds(run, make_trainer, unlisted, largest_difference):
    keys = {"lora": False, "max_steps": 2, "learning_rate": 1e-3}
    with pytest.raises(ValueError, match=r"pack_groups='on'.*fast_models: \[starcoder2\]"):
        make_trainer(model=unlisted("starcoder2"), pack_groups="on", **keys)
    plain = run(model=unlisted("starcoder2"), **keys)
    packed = run(model=unlisted("starcoder2"), pack_groups="on", fast_models=["starcoder2"], **keys)
    assert packed.acceleration.packing.on
    assert 0.0 < largest_difference(plain, packed) < 1e-5
    hunyuan = unlisted("hunyuan_v1_dense", head_dim=8)
    with pytest.raises(ValueError, match="pack_groups='on'.*differ from those in padded rows"):
        make_trainer(model=hunyuan, pack_groups="on", fast_models=["hunyuan_v1_dense"], **keys)


def test_preflight_says_whether_it_could_be_tried(make_trainer, unlisted):
    def found(**keys):
        made = make_trainer(lora=False, **keys)
        return [finding for finding in preflight(made, prompts=2) if finding.what == "family of models"]

    (finding,) = found(model=unlisted("starcoder2"))
    assert "fast_models: [starcoder2]" in finding.change
    assert found(model=unlisted("starcoder2"), fast_models=["starcoder2"], fast=True) == []
    assert found() == []
