from contextlib import nullcontext

import pytest
import torch
from peft import LoraConfig, get_peft_model
from run_record import read_rows
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from trl_prorl.cli.dropout import check_dropout


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


@pytest.mark.parametrize("keys", [{"beta": 0.1, "ref_reset_every": 2}, {"beta_base": 0.1}])
def test_a_frozen_copy_of_an_adapter_has_no_dropout(make_trainer, tiny_model, keys):
    config = LoraConfig(r=4, target_modules=["q_proj"], lora_dropout=0.1)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), config)
    trainer = make_trainer(model=model, lora=False, disable_dropout=True, **keys)
    assert len(trainer.model.peft_config) == 2
    assert {module.p for module in trainer.model.modules() if isinstance(module, torch.nn.Dropout)} == {0}


def test_a_frozen_copy_of_a_full_model_has_no_dropout(run, tiny_model, tmp_path):
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": len(AutoTokenizer.from_pretrained(tiny_model))}
    AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", **sizes)).save_pretrained(tmp_path / "gpt2")
    keys = {"lora": False, "disable_dropout": True, "beta_base": 0.1, "learning_rate": 0.0, "max_steps": 2}
    trainer = run(model=str(tmp_path / "gpt2"), **keys)
    assert [row["kl_base"] for row in read_rows(trainer)] == pytest.approx([0.0, 0.0], abs=1e-6)


@pytest.mark.parametrize("cure", [{"disable_dropout": True}, {"model_init_kwargs": {"attention_dropout": 0.0}}])
def test_dropout_of_attention_is_refused_until_the_model_is_loaded_without(make_trainer, tiny_model, tmp_path, cure):
    AutoModelForCausalLM.from_pretrained(tiny_model, attention_dropout=0.3).save_pretrained(tmp_path / "model")
    refused = pytest.raises(ValueError, match="attn has a dropout rate of 0.3.*model_init.*: {attention_dropout: 0.0}")
    with refused if "disable_dropout" in cure else nullcontext():
        make_trainer(model=str(tmp_path / "model"), beta_old=0.1, **cure)


@pytest.mark.parametrize("kind, key", [("seed_oss", "residual_dropout"), ("mixtral", "router_jitter_noise")])
def test_a_rate_without_a_module_is_found_and_its_key_named(kind, key):
    others = {"num_local_experts": 2} if kind == "mixtral" else {}
    with pytest.raises(ValueError, match=f"{key}: 0.0"):
        check_dropout(small(kind, **others, **{key: 0.4}))
    check_dropout(small(kind, **others, **{key: 0.0}))


def test_layers_left_out_at_random_are_found():
    opt = {"ffn_dim": 48, "dropout": 0.0, "word_embed_proj_dim": 32}
    with pytest.raises(ValueError, match="rate of 0.01.*model_init_kwargs: {layerdrop: 0.0}"):
        check_dropout(small("opt", layerdrop=0.01, **opt))
    check_dropout(small("opt", layerdrop=0.0, **opt))


def test_a_trainer_refuses_what_its_own_dropout_switch_does_not_reach(make_trainer, tmp_path):
    small("seed_oss", residual_dropout=0.2).save_pretrained(tmp_path)
    keys = {"model": str(tmp_path), "beta_old": 0.1}
    with pytest.raises(ValueError, match="residual_dropout.* residual_dropout=0.0"):
        make_trainer(disable_dropout=True, **keys)
    make_trainer(model_init_kwargs={"residual_dropout": 0.0}, **keys)
    make_trainer(model=str(tmp_path), beta=0.1)  # plain TRL is not looked at
