"""The list of a model's modules is made once a generation batch, and is never out of date."""

from forks.training import AtStep
from peft import LoraConfig
from tiny_run import LORA

from trl_prorl.parts import Part


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
