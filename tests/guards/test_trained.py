"""A run whose forward pass does not use what is trained stops at its first update with a signal, in one line."""

import pytest
import torch
from peft import IA3Config, LoraConfig, get_peft_model
from tiny_run import LORA, constant, vowels
from transformers import AutoModelForCausalLM

from trl_prorl.errors import RunError


class Idle(torch.optim.SGD):
    """An optimizer whose updates change nothing."""

    def step(self, closure=None):
        return None


def inactive_is_trained(path):
    """A model whose active adapter is frozen, with a trainable one that is not active."""
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(path), LoraConfig(**LORA))
    model.add_adapter("other", LoraConfig(**LORA))
    for name, param in model.named_parameters():
        param.requires_grad_(".other." in name)
    return model


def refusal(trainer):
    with pytest.raises(RunError) as caught:
        trainer.train()
    line = str(caught.value)
    assert "\n" not in line
    assert trainer.state.global_step <= 1
    return line


def test_a_frozen_adapter_that_is_active(make_trainer, tiny_model):
    """With a KL PEFT lets it require gradients again, and the gradient norm looks healthy."""
    line = refusal(make_trainer(model=inactive_is_trained(tiny_model), lora=False, beta=0.1))
    assert ".other." in line and ".default." in line and "set_adapter" in line
    line = refusal(make_trainer(model=inactive_is_trained(tiny_model), lora=False))
    assert "set_adapter" in line


@pytest.mark.parametrize("fast", [False, True])
def test_an_optimizer_of_other_tensors(make_trainer, fast):
    optimizers = (torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))], lr=1e-2), None)
    line = refusal(make_trainer(trainer_kwargs={"optimizers": optimizers}, fast=fast))
    assert "lora_" in line


@pytest.mark.parametrize("lora", [True, False])
def test_updates_that_change_nothing(make_trainer, lora):
    trainer = make_trainer(lora=lora)
    trainer.optimizer = Idle([param for param in trainer.model.parameters() if param.requires_grad], lr=1e-2)
    assert "step 1" in refusal(trainer)


def test_weights_that_an_update_rounds_away(make_trainer, tiny_model):
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16)
    model.requires_grad_(False)
    norm = model.model.norm.weight.requires_grad_(True)
    torch.nn.init.ones_(norm)
    line = refusal(make_trainer(model=model, lora=False, learning_rate=1e-6))
    assert "learning_rate" in line and "bfloat16" in line


def test_a_small_rate_of_a_warm_up_says_nothing(run):
    """IA3's vectors are ones, the neighbours of 1 in fp32 are 6e-8 away, and the first rates are 5e-9 to 1.5e-8."""
    vectors = IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"])
    schedule = {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 1000}
    trainer = run(lora=False, trainer_kwargs={"peft_config": vectors}, learning_rate=5e-6, **schedule)
    assert trainer.state.global_step == 4 and trainer.trained_check.is_due


@pytest.mark.parametrize(
    "keys",
    [
        {"reward": constant(0.5)},  # no signal at all
        {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 2},  # a first update of size 0
        {"lora": False, "skip_zero_rows": True, "num_iterations": 1, "gradient_accumulation_steps": 2},
        {"nonfinite": "skip"},
    ],
    ids=["no signal", "warm-up", "zero rows", "skip"],
)
def test_a_run_that_trains_or_has_nothing_to_learn_is_not_stopped(run, keys):
    trainer = run(**{"reward": vowels, **keys})
    assert trainer.state.global_step == 4
    assert trainer.trained_check.is_due == ("reward" in keys)
