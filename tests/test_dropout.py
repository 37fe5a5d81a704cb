from contextlib import nullcontext

import pytest
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM

from trl_prorl.scoring.dropout import check_dropout, check_dropout_config


def test_lora_dropout_is_refused_before_a_model_is_loaded():
    with pytest.raises(ValueError, match="lora_dropout=0.05.*disable_dropout: true"):
        check_dropout_config(LoraConfig(lora_dropout=0.05))
    check_dropout_config(LoraConfig(lora_dropout=0.0))
    check_dropout_config(None)


def test_dropout_of_modules_and_of_attention_is_found(tiny_model):
    check_dropout(AutoModelForCausalLM.from_pretrained(tiny_model))
    with pytest.raises(ValueError, match="1 has a dropout rate of 0.2.*Set disable_dropout: true"):
        check_dropout(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.2)))
    with pytest.raises(ValueError, match="self_attn has a dropout rate of 0.3.*attention_dropout: 0.0"):
        check_dropout(AutoModelForCausalLM.from_pretrained(tiny_model, attention_dropout=0.3))


@pytest.mark.parametrize("keys", [{"beta": 0.1, "ref_reset_every": 2}, {"beta_old": 0.1}, {"reuse_old_logps": True}])
def test_a_trainer_with_an_anchor_refuses_dropout_or_switches_it_off(make_trainer, keys):
    config = LoraConfig(r=4, target_modules=["q_proj"], lora_dropout=0.1)
    with pytest.raises(ValueError, match="lora_dropout=0.1"):
        make_trainer(lora=False, trainer_kwargs={"peft_config": config}, **keys)
    trainer = make_trainer(lora=False, trainer_kwargs={"peft_config": config}, disable_dropout=True, **keys)
    assert all(module.p == 0 for module in trainer.model.modules() if isinstance(module, torch.nn.Dropout))


@pytest.mark.parametrize("cure", [{"disable_dropout": True}, {"model_init_kwargs": {"attention_dropout": 0.0}}])
def test_dropout_of_attention_is_refused_until_the_model_is_loaded_without(make_trainer, tiny_model, tmp_path, cure):
    AutoModelForCausalLM.from_pretrained(tiny_model, attention_dropout=0.3).save_pretrained(tmp_path / "model")
    refused = pytest.raises(ValueError, match="model_init_kwargs: {attention_dropout: 0.0}")
    with refused if "disable_dropout" in cure else nullcontext():
        make_trainer(model=str(tmp_path / "model"), beta_old=0.1, **cure)


def test_plain_trl_keeps_its_dropout(make_trainer):
    config = LoraConfig(r=4, target_modules=["q_proj"], lora_dropout=0.1)
    make_trainer(lora=False, trainer_kwargs={"peft_config": config}, beta=0.1)
