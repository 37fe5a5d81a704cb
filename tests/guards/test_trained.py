"""A run whose forward pass does not use what is trained stops at its first update, in one line."""

import pytest
import torch
from tiny_run import constant, vowels
from transformers import AutoModelForCausalLM

from trl_prorl.errors import RunError
from trl_prorl.guards.trained import sample_entries


class Idle(torch.optim.SGD):
    """An optimizer whose updates change nothing."""

    def step(self, closure=None):
        return None


def refusal(trainer):
    with pytest.raises(RunError) as caught:
        trainer.train()
    line = str(caught.value)
    assert "\n" not in line
    assert trainer.state.global_step <= 1
    return line


@pytest.mark.parametrize("fast", [False, True])
def test_an_optimizer_of_other_tensors(make_trainer, fast):
    optimizers = (torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))], lr=1e-2), None)
    assert "no gradient" in refusal(make_trainer(trainer_kwargs={"optimizers": optimizers}, fast=fast))


def unchanged(caplog):
    return [line for line in caplog.messages if "changed none of the compared weights" in line]


@pytest.mark.parametrize("lora", [True, False])
@pytest.mark.parametrize("kind, times", [(Idle, 1), (torch.optim.SGD, 0)])
def test_updates_that_change_nothing_are_said_once(make_trainer, caplog, lora, kind, times):
    trainer = make_trainer(lora=lora)
    trainer.optimizer = kind([param for param in trainer.model.parameters() if param.requires_grad], lr=1e-2)
    trainer.train()
    assert trainer.state.global_step == 4
    assert len(unchanged(caplog)) == times


def test_weights_that_an_update_rounds_away(run, tiny_model, caplog):
    """A norm's weights are ones, whose neighbours in bf16 are 2 ** -8 away."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16)
    model.requires_grad_(False)
    torch.nn.init.ones_(model.model.norm.weight.requires_grad_(True))
    run(model=model, lora=False, learning_rate=1e-6)
    assert len(unchanged(caplog)) == 1


def test_some_entries_of_a_large_parameter_are_compared_and_its_largest_gradient():
    param = torch.nn.Parameter(torch.zeros(1000, 1000))
    param.grad = torch.zeros_like(param)
    param.grad[700, 3] = -2.0
    _, places, values = sample_entries(param)
    assert 700_003 in places
    assert len(values) == len(places) < 1000


@pytest.mark.parametrize(
    "keys",
    [
        {"reward": constant(0.5)},  # no signal at all
        {"reward": constant(0.5), "skip_zero_rows": True},
        {"reward": constant(0.5), "skip_zero_rows": True, "fast": True},
        {"reward": constant(0.5), "skip_zero_rows": True, "lora": False, "gradient_checkpointing": True},
        {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 2},  # a first update of size 0
        {"lora": False, "skip_zero_rows": True, "num_iterations": 1, "gradient_accumulation_steps": 2},
        {"nonfinite": "skip"},
    ],
    ids=["no signal", "no rows", "no rows, fast", "no rows, full", "warm-up", "zero rows", "skip"],
)
def test_a_run_that_trains_or_has_nothing_to_learn_is_not_stopped(run, caplog, keys):
    trainer = run(**{"reward": vowels, **keys})
    assert trainer.state.global_step == 4
    assert unchanged(caplog) == []
