import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from peft import LoraConfig
from transformers import AutoConfig, AutoModelForCausalLM

from trl_prorl.launch.dropout import check_dropout, check_randomness


SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 300,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "attention_dropout": 0.0,
}


def small(kind, **keys):
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SHAPE, **keys}))


def test_dropout_of_modules_is_found(tiny_model):
    check_dropout(AutoModelForCausalLM.from_pretrained(tiny_model))
    with pytest.raises(ValueError, match="1 has a dropout rate of 0.2.*Set disable_dropout: true"):
        check_dropout(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.2)))


@pytest.mark.parametrize("keys", [{"beta": 0.1, "ref_reset_every": 2}, {"beta_old": 0.1}, {"reuse_old_logps": True}])
def test_a_trainer_with_an_anchor_refuses_dropout_or_switches_it_off(make_trainer, keys):
    config = LoraConfig(r=4, target_modules=["q_proj"], lora_dropout=0.1)
    given = {"lora": False, "trainer_kwargs": {"peft_config": config}}
    with pytest.raises(ValueError, match="lora_dropout=0.1.*disable_dropout: true"):
        make_trainer(model="no model is loaded", **given, **keys)
    for cure, rate in (({"disable_dropout": True, **keys}, 0), ({"beta": 0.1}, 0.1)):  # plain TRL keeps its own
        modules = make_trainer(**given, **cure).model.modules()
        assert {module.p for module in modules if isinstance(module, torch.nn.Dropout)} == {rate}


@pytest.mark.parametrize("cure", [{"disable_dropout": True}, {"model_init_kwargs": {"attention_dropout": 0.0}}])
def test_dropout_of_attention_is_refused_until_the_model_is_loaded_without(make_trainer, tiny_model, tmp_path, cure):
    AutoModelForCausalLM.from_pretrained(tiny_model, attention_dropout=0.3).save_pretrained(tmp_path / "model")
    refused = pytest.raises(ValueError, match="attn has a dropout rate of 0.3.*model_init.*: {attention_dropout: 0.0}")
    with refused if "disable_dropout" in cure else nullcontext():
        make_trainer(model=str(tmp_path / "model"), beta_old=0.1, **cure)


@pytest.mark.parametrize("kind, key", [("seed_oss", "residual_dropout"), ("mixtral", "router_jitter_noise")])
def test_what_is_random_without_a_module_is_found(kind, key):
    others = {"num_local_experts": 2} if kind == "mixtral" else {}
    model = small(kind, **others, **{key: 0.4})
    check_dropout(model)  # shows nothing
    with pytest.raises(ValueError, match=f"{key}: 0.0"):
        check_randomness(model)
    check_randomness(small(kind, **others, **{key: 0.0}))


def test_layers_left_out_at_random_are_found():
    """OPT draws a number for each layer even where nothing depends on it."""
    opt = {"ffn_dim": 48, "dropout": 0.0, "word_embed_proj_dim": 32}
    with pytest.raises(ValueError, match="rate of 0.01.*model_init_kwargs: {layerdrop: 0.0}"):
        check_dropout(small("opt", layerdrop=0.01, **opt))
    model = small("opt", layerdrop=0.0, **opt)
    check_dropout(model)
    check_randomness(model)


@pytest.mark.parametrize("draws, forwards", [(False, 1), (True, 3)])
def test_sums_in_no_fixed_order_are_not_dropout(draws, forwards):
    """A forward that draws no random number needs no second one."""
    model = small("qwen2")
    calls = []

    def sum_in_another_order(module, args, output):
        calls.append(module)
        if draws:
            torch.rand(())
        return output * (1 + 1e-6 * (len(calls) % 3))

    model.model.norm.register_forward_hook(sum_in_another_order)
    check_randomness(model)
    assert len(calls) == forwards


@pytest.mark.parametrize("draw", [random.random, np.random.rand, lambda: torch.rand(()).item()])
def test_what_is_random_by_any_generator_is_found(draw):
    model = small("qwen2")
    model.model.norm.register_forward_hook(lambda module, args, output: output * (1 + 0.01 * draw()))
    with pytest.raises(ValueError, match="differ between two seeds"):
        check_randomness(model)


@pytest.mark.parametrize("kind", ["qwen2", "seed_oss"])
def test_the_look_leaves_no_trace(kind):
    keys = {"residual_dropout": 0.3} if kind == "seed_oss" else {}
    model = small(kind, **keys).eval()
    model.lm_head.train()
    modes = [module.training for module in model.modules()]
    before = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    with pytest.raises(ValueError) if kind == "seed_oss" else nullcontext():
        check_randomness(model)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), str(np.random.get_state())) == before[1:]
    assert [module.training for module in model.modules()] == modes
    assert all(param.grad is None for param in model.parameters())


def test_a_trainer_refuses_what_its_own_dropout_switch_does_not_reach(make_trainer, tmp_path):
    small("seed_oss", residual_dropout=0.2).save_pretrained(tmp_path)
    keys = {"model": str(tmp_path), "beta_old": 0.1}
    with pytest.raises(ValueError, match="layers.0.* residual_dropout=0.2"):
        make_trainer(disable_dropout=True, **keys)
    make_trainer(model_init_kwargs={"residual_dropout": 0.0}, **keys)
    make_trainer(model=str(tmp_path), beta=0.1)  # plain TRL is not looked at
