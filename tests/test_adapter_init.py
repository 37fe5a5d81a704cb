"""Initialisations of LoRA: those that leave the model as it is start where TRL's do, the others are refused."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora.config import KasaConfig
from tiny_run import logits
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer


def adapter(**keys):
    targets = ["q_proj", "v_proj", "down_proj"]
    return {"lora": False, "trainer_kwargs": {"peft_config": LoraConfig(r=4, target_modules=targets, **keys)}}


@pytest.mark.parametrize("init", [True, False, "gaussian", "orthogonal", "eva", "mica"])
def test_the_policy_starts_where_trl_s_does(make_trainer, init):
    trl = make_trainer(cls=GRPOTrainer, **adapter(init_lora_weights=init)).model
    for keys in ({"beta": 0.1, "ref_reset_every": 2}, {"beta_base": 0.1}):
        ours = make_trainer(**keys, **adapter(init_lora_weights=init))
        assert torch.equal(logits(trl), logits(ours.model))
        for name in ours.model.peft_config.keys() - {"default"}:
            assert torch.equal(logits(trl), logits(ours.model, name)), name


@pytest.mark.parametrize(
    "keys, named",
    [({"init_lora_weights": init}, init) for init in ("pissa", "pissa_niter_2", "olora", "corda", "lora_ga", "loftq")]
    + [({"kasa_config": KasaConfig()}, "kasa_config")],
)
def test_one_that_changes_the_model_is_refused(make_trainer, tiny_model, keys, named):
    if named == "loftq":
        keys = keys | {"loftq_config": {"loftq_bits": 4}}
    with pytest.raises(ValueError, match=f"{named}.* changes the model's own weights.*Set init_lora_weights: true"):
        make_trainer(**adapter(**keys))


def test_of_a_model_that_was_wrapped_before_too(make_trainer, tiny_model):
    config = LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights="pissa")
    wrapped = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), config)
    with pytest.raises(ValueError, match="init_lora_weights='pissa' changes"):
        make_trainer(model=wrapped, lora=False)
