"""The list of a model's modules is made once a generation batch, and is never out of date."""

import pytest
import torch
from forks.training import AtStep
from peft import LoraConfig
from tiny_run import LORA
from trl import GRPOTrainer

from trl_prorl import ProRLTrainer
from trl_prorl.parts import Part


@pytest.fixture
def count_walks(run, monkeypatch):
    """Return a function that trains, and counts the walks through the whole model in the steps 3 and 4."""
    original = torch.nn.Module.named_modules

    def count(cls, **keys):
        sizes = []

        def named_modules(module, memo=None, *args, **kwargs):
            if memo is None and hasattr(module, "config"):  # else a part of a model, or within a walk
                sizes.append(type(module).__name__)
            return original(module, memo, *args, **kwargs)

        monkeypatch.setattr(torch.nn.Module, "named_modules", named_modules)
        run(
            cls,
            num_iterations=2,
            max_steps=4,
            trainer_kwargs={"callbacks": [AtStep(2, lambda args: sizes.clear())]},
            **keys,
        )
        return len(sizes)

    return count


TWO_MICRO_BATCHES = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 2}


def test_a_generation_batch_needs_three_walks_more_than_trls(count_walks):
    """All modules, all parameters, and which model TRL asks about. Every micro-batch switches to the reference."""
    anchored = {"beta": 0.1, "ref_reset_every": 100, "ref_compute": "naive_epoch", "gradient_checkpointing": True}
    ours = count_walks(ProRLTrainer, **anchored, **TWO_MICRO_BATCHES)
    assert ours <= count_walks(GRPOTrainer, **TWO_MICRO_BATCHES) + 3


class Compared(Part):
    """Compares the parameters that parts get with those of the model."""

    def __init__(self, trainer):
        self.trainer = trainer
        self.same = []

    def compare(self, parameters):
        now = {name: id(param) for name, param in self.trainer.model.named_parameters()}
        self.same.append({name: id(param) for name, param in parameters.items()} == now)

    def on_backward(self, parameters):
        self.compare(parameters)

    def on_step_end(self, step, parameters):
        self.compare(parameters)


def test_parts_get_the_parameters_of_adapters_that_were_added(make_trainer):
    """By a callback after a generation batch; and before a resume within one, when they were listed already."""
    keys = {"num_iterations": 2, "max_steps": 4, "save_strategy": "steps", "save_steps": 3}
    trainer = make_trainer(**keys)
    trainer.add_callback(AtStep(2, lambda args: trainer.model.add_adapter("other", LoraConfig(**LORA))))
    part = trainer.parts["compared"] = Compared(trainer)
    trainer.train()
    assert part.same[4:] == [True] * 4
    resumed = make_trainer(**keys)
    part = resumed.parts["compared"] = Compared(resumed)
    resumed.modules.parameters()
    resumed.model.add_adapter("other", LoraConfig(**LORA))
    resumed.train(resume_from_checkpoint=f"{trainer.args.output_dir}/checkpoint-3")
    assert part.same == [True] * 2
