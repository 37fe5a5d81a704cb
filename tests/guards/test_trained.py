"""A run whose forward pass does not use what is trained stops at its first update with a signal, in one line."""

import logging

import pytest
import torch
from peft import IA3Config, LoraConfig, get_peft_model
from tiny_run import LORA, constant, vowels
from transformers import AutoModelForCausalLM, TrainerCallback
from transformers.optimization import Adafactor, AdafactorSchedule

from trl_prorl.cli.terminal import highest_rate
from trl_prorl.errors import RunError
from trl_prorl.eval.readiness.first_steps import rate_findings


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
    with pytest.raises(RunError, match="nothing (is|would be) trained") as caught:
        trainer.train()
    assert "\n" not in str(caught.value)
    assert trainer.state.global_step == 2


def test_an_idle_optimizer_whose_first_group_has_the_rate_0(make_trainer):
    trainer = make_trainer()
    params = [param for param in trainer.model.parameters() if param.requires_grad]
    trainer.optimizer = Idle([{"params": params[:2], "lr": 0.0}, {"params": params[2:], "lr": 1e-2}])
    assert "step 1" in refusal(trainer)


def some_of(model, part):
    return [param for name, param in model.named_parameters() if part in name]


@pytest.mark.parametrize(
    "part, named",
    [
        ("layers.0", "layers.1"),  # the optimizer has less than gets gradients
        ("", None),
    ],
)
def test_gradients_without_an_optimizer_are_named(make_trainer, tiny_model, caplog, part, named):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    optimizers = (torch.optim.SGD(some_of(model, part), lr=1e-2), None)
    make_trainer(model=model, lora=False, trainer_kwargs={"optimizers": optimizers}).train()
    said = [line for line in caplog.messages if "the optimizer does not have them" in line]
    assert len(said) == (named is not None)


def test_an_adapter_that_is_trained_and_not_used_is_named(make_trainer, tiny_model, caplog):
    model = inactive_is_trained(tiny_model)
    for param in some_of(model, "lora_"):
        param.requires_grad_(True)
    make_trainer(model=model, lora=False).train()
    (line,) = [line for line in caplog.messages if "get no gradient" in line]
    assert line.startswith("12 of 24 ") and ".other." in line


@pytest.mark.parametrize("rate, times", [(0.0, 1), (1e-3, 0)])
def test_a_learning_rate_of_0_is_said(run, caplog, rate, times):
    run(learning_rate=rate, max_steps=1)
    assert len([line for line in caplog.messages if "learning rate is 0" in line]) == times


def test_a_group_whose_learning_rate_is_0_is_said(make_trainer, tiny_model, caplog):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    groups = [{"params": some_of(model, "layers.0"), "lr": 0.0}, {"params": some_of(model, "layers.1")}]
    optimizer = torch.optim.SGD(groups, lr=1e-2)
    make_trainer(model=model, lora=False, max_steps=1, trainer_kwargs={"optimizers": (optimizer, None)}).train()
    assert len([line for line in caplog.messages if "learning rate is 0 in 1 of 2" in line]) == 1


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


@pytest.mark.parametrize("rate, dtype, times", [(1e-7, "bfloat16", 1), (1e-2, "bfloat16", 0), (1e-7, "float32", 0)])
def test_a_rate_that_bf16_rounds_away_for_most_weights_is_said(run, tiny_model, caplog, rate, dtype, times):
    """Only weights below 1e-4 are so small that 1e-7 changes them: their neighbours are 2 ** -8 of a weight away."""
    caplog.set_level(logging.WARNING)
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=dtype)
    run(model=model, lora=False, learning_rate=rate, max_steps=2)
    assert len([line for line in caplog.messages if "rounded away" in line]) == times


def rounded(caplog):
    return [line for line in caplog.messages if "rounded away" in line]


@pytest.mark.parametrize(
    "config, casts, named",
    [
        ({"modules_to_save": ["norm"]}, True, "5 of 17 "),  # bf16 copies beside an adapter in fp32
        ({}, False, "6 of 12 "),  # as TRL casts the adapter of a quantized model
        ({}, True, None),
    ],
    ids=["norms in bf16", "first factors in bf16", "fp32"],
)
def test_a_part_of_the_parameters_whose_updates_bf16_rounds_away_is_said(
    run, tiny_model, caplog, config, casts, named
):
    """A norm's weights are ones, whose neighbours in bf16 are 2 ** -8 away."""
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16)
    model = get_peft_model(base, LoraConfig(**LORA, **config), autocast_adapter_dtype=casts)
    run(model=model, lora=False, learning_rate=1e-5)
    said = rounded(caplog)
    assert len(said) == (named is not None)
    assert all(named in line for line in said)


def test_weights_that_grow_until_updates_are_rounded_away_are_said(make_trainer, tiny_model, caplog, monkeypatch):
    def grow(model):
        for param in some_of(model, "lora_"):
            param.data.mul_(1000.0)

    monkeypatch.setattr("trl_prorl.guards.trained.EVERY", 4)
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16)
    model = get_peft_model(base, LoraConfig(**LORA), autocast_adapter_dtype=False)
    make_trainer(model=model, lora=False, trainer_kwargs={"callbacks": [Changing(grow)]}).train()
    (line,) = rounded(caplog)
    assert line.startswith("Step 4 ")


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
        {"reward": constant(0.5), "skip_zero_rows": True},
        {"reward": constant(0.5), "skip_zero_rows": True, "fast": True},
        {"reward": constant(0.5), "skip_zero_rows": True, "lora": False, "gradient_checkpointing": True},
        {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 2},  # a first update of size 0
        {"lora": False, "skip_zero_rows": True, "num_iterations": 1, "gradient_accumulation_steps": 2},
        {"nonfinite": "skip"},
    ],
    ids=["no signal", "no rows", "no rows, fast", "no rows, full", "warm-up", "zero rows", "skip"],
)
def test_a_run_that_trains_or_has_nothing_to_learn_is_not_stopped(run, keys):
    trainer = run(**{"reward": vowels, **keys})
    assert trainer.state.global_step == 4
    assert trainer.trained_check.is_due == ("reward" in keys)
