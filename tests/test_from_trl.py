"""A run that begins where one of TRL's own trainer ended: TRL, begun there too, is the control."""

import pytest
import torch
from tiny_run import load_adapter
from trl import GRPOTrainer

from trl_prorl import ProRLTrainer
from trl_prorl.train import find_model


SAVED = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2, "learning_rate": 2e-2}


@pytest.fixture
def of_trl(run):
    """A function that trains with TRL, with LoRA or in full, and returns the checkpoint."""

    def train(lora):
        return f"{run(GRPOTrainer, lora=lora, **SAVED).args.output_dir}/checkpoint-2"

    return train


@pytest.mark.parametrize("lora", [True, False], ids=["adapter", "full"])
def test_until_its_first_reset_it_is_trl_s(run, of_trl, tiny_model, largest_difference, weights, lora):
    start = of_trl(lora)
    model = (lambda: load_adapter(tiny_model, start, is_trainable=True)) if lora else (lambda: start)
    theirs = run(GRPOTrainer, lora=False, model=model(), beta=0.3)
    ours = run(lora=False, model=model(), beta=0.3, ref_reset_every=100)
    assert largest_difference(ours, theirs) < 1e-6
    if lora:  # and both have moved
        begun = dict(model().named_parameters())
        moved = weights(ours)
        assert any((moved[name] - begun[name]).abs().max() > 1e-3 for name in moved if "lora_B" in name)


def test_reference_and_base_are_the_policy_as_the_run_begins(make_trainer, of_trl, tiny_model):
    start = of_trl(True)
    keys = {"beta": 0.3, "ref_reset_every": 2, "beta_base": 0.1, "lora": False}
    trainer = make_trainer(model=load_adapter(tiny_model, start, is_trainable=True), **keys)
    for anchor in (trainer.reference, trainer.base):
        pairs = anchor.pairs()
        assert pairs
        assert all(torch.equal(theirs, policy) for theirs, policy in pairs)
        assert any(theirs.any() for theirs, _ in pairs[1::2])  # B too: it is no new adapter


def test_a_recipe_and_a_resume_refuse_what_trl_has_left_and_say_where_to_read_on(make_trainer, of_trl):
    start = of_trl(True)
    with pytest.raises(ValueError, match="an adapter.*from-sft.md"):
        find_model(start)
    trainer = make_trainer(ProRLTrainer, **SAVED)
    with pytest.raises(ValueError, match="manifest.json"):
        trainer.train(resume_from_checkpoint=start)
