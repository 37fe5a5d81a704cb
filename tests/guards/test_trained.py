"""A run whose forward pass does not use what is trained stops at its first update, in one line."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_run import LORA, constant, vowels
from transformers import AutoModelForCausalLM, TrainerCallback
from transformers.optimization import Adafactor, AdafactorSchedule

from trl_prorl.cli.terminal import highest_rate
from trl_prorl.errors import RunError
from trl_prorl.eval.readiness.first_steps import rate_findings
from trl_prorl.guards.trained import sample_entries


class Idle(torch.optim.SGD):
    """An optimizer whose updates change nothing."""

    def step(self, closure=None):
        return None


class Changing(TrainerCallback):
    """Changes the model when two steps are done."""

    def __init__(self, change):
        self.change = change

    def on_step_begin(self, args, state, control, model=None, **others):
        if state.global_step == 2:
            self.change(model)


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
    assert "set_adapter" in refusal(make_trainer(model=inactive_is_trained(tiny_model), lora=False, beta=0.1))


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


def test_some_entries_of_a_large_parameter_are_compared_and_its_largest_gradient():
    param = torch.nn.Parameter(torch.zeros(1000, 1000))
    param.grad = torch.zeros_like(param)
    param.grad[700, 3] = -2.0
    _, places, values = sample_entries(param)
    assert 700_003 in places
    assert len(values) == len(places) < 1000


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.set_adapter("other"),
        lambda model: model.merge_adapter(),
        lambda model: model.base_model.disable_adapter_layers(),
        lambda model: model.requires_grad_(False),
    ],
    ids=["switched", "merged", "disabled", "frozen"],
)
@pytest.mark.parametrize("keys", [{"gradient_checkpointing": True}, {"fast": True}], ids=["checkpointing", "fast"])
def test_a_callback_that_changes_the_adapter_in_the_middle(make_trainer, tiny_model, change, keys):
    """With gradient checkpointing the inputs require gradients, so the loss does, too."""
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), LoraConfig(**LORA))
    model.add_adapter("other", LoraConfig(**LORA))
    trainer = make_trainer(model=model, lora=False, trainer_kwargs={"callbacks": [Changing(change)]}, **keys)
    with pytest.raises(RuntimeError):  # ours, or torch's for a loss without a gradient
        trainer.train()
    assert trainer.state.global_step == 2


def test_an_optimizer_that_chooses_its_learning_rate(make_trainer, largest_difference, tiny_model, caplog):
    """Its groups have 0, or none, until the first update."""
    trainers = []
    for steps in (1, 2):
        model = AutoModelForCausalLM.from_pretrained(tiny_model)
        optimizer = Adafactor(model.parameters(), lr=None, relative_step=True)
        given = {"optimizers": (optimizer, AdafactorSchedule(optimizer))}
        assert highest_rate(optimizer) is None and rate_findings(None, lora=False) == []
        trainers.append(make_trainer(model=model, lora=False, max_steps=steps, trainer_kwargs=given))
        trainers[-1].train()
    assert largest_difference(*trainers) > 1e-4
    assert not [line for line in caplog.messages if "learning rate" in line or "learning_rate" in line]


@pytest.mark.parametrize(
    "keys",
    [
        {"reward": constant(0.5)},  # no signal at all
        {"reward": constant(0.5), "skip_zero_rows": True, "fast": True},
        {"reward": constant(0.5), "skip_zero_rows": True, "lora": False, "gradient_checkpointing": True},
        {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 2},  # a first update of size 0
        {"lora": False, "skip_zero_rows": True, "num_iterations": 1, "gradient_accumulation_steps": 2},
    ],
    ids=["no signal", "no rows, fast", "no rows, full", "warm-up", "zero rows"],
)
def test_a_run_that_trains_or_has_nothing_to_learn_is_not_stopped(run, caplog, keys):
    trainer = run(**{"reward": vowels, **keys})
    assert trainer.state.global_step == 4
    assert unchanged(caplog) == []
