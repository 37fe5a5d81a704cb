"""What is trained beside an adapter: the model as saved before is the control."""

from pathlib import Path

import pytest
from peft import LoraConfig, get_peft_model
from tiny_run import LORA, logits
from transformers import AutoModelForCausalLM

from trl_prorl.eval.samples.models import Point, load_point
from trl_prorl.eval.samples.trainer_held_out import TrainerHeldOut


LARGE = {"learning_rate": 2e-2, "beta": 0.0}


@pytest.fixture
def begun(tiny_model):
    return logits(AutoModelForCausalLM.from_pretrained(tiny_model))


def far(one, other):
    """The largest difference."""
    return (one - other).abs().max().item()


@pytest.mark.parametrize("bias", ["all", "lora_only"])
def test_trained_biases_are_not_those_of_the_base(run, tiny_model, begun, bias):
    trainer = run(trainer_kwargs={"peft_config": LoraConfig(**LORA, bias=bias)}, **LARGE)
    held_out = TrainerHeldOut(trainer, trainer.train_dataset, None, "own")
    with held_out.as_point(held_out.base):
        assert far(logits(trainer.model), begun) < 1e-6
    assert far(logits(trainer.model), begun) > 1
    with trainer.model.disable_adapter():
        assert far(logits(trainer.model), begun) > 0.5  # what was taken for the base
    trainer.save_model()
    saved = load_point(Point("trained", 4, Path(trainer.args.output_dir)), {"model_name_or_path": tiny_model})
    assert far(logits(saved), logits(trainer.model)) < 1e-6


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_weights_of_the_model_that_a_script_trains_are_refused(make_trainer, tiny_model, beta):
    """No file of the adapter holds them, and a reference would move with them."""
    words = "input_layernorm.weight"
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), LoraConfig(**LORA))
    norm = model.get_base_model().model.layers[0].input_layernorm.weight
    norm.requires_grad_(True)
    with pytest.raises(ValueError, match=words):
        make_trainer(model=model, lora=False, beta=beta)
    trainer = make_trainer(beta=beta)
    trainer.model.get_base_model().model.layers[0].input_layernorm.weight.requires_grad_(True)
    with pytest.raises(ValueError, match=words):
        trainer.train()
