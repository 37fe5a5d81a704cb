"""`pack` on TRL's own trainer: its weights, from fewer positions."""

import pytest
import torch
from trl import GRPOTrainer

from trl_prorl.errors import InputError
from trl_prorl.fast import pack
from trl_prorl.fast.any_trainer import PackedScores


KEYS = {"beta": 0.1, "num_iterations": 2, "max_steps": 4}


class Own(GRPOTrainer):
    """A subclass that a user could have."""


def train(make_trainer, cls, packs, lora):
    torch.manual_seed(7)  # of the adapter
    trainer = make_trainer(cls, lora=lora, **KEYS)
    positions = []

    def count(module, given, found):
        if module.training:
            positions.append(given[0].numel())

    trainer.model.get_input_embeddings().register_forward_hook(count)
    if packs:
        pack(trainer)
    trainer.train()
    return trainer, sum(positions)


@pytest.mark.parametrize("lora", [True, False], ids=["LoRA", "full"])
@pytest.mark.parametrize("cls", [GRPOTrainer, Own])
def test_a_packed_trainer_has_trls_weights(make_trainer, largest_difference, cls, lora):
    theirs, many = train(make_trainer, cls, False, lora)
    packed, few = train(make_trainer, cls, True, lora)
    assert largest_difference(theirs, packed) < 6e-5
    assert few < many


def test_a_model_that_is_not_listed_is_refused(make_trainer):
    trainer = make_trainer(GRPOTrainer, lora=False)
    trainer.model.config.model_type = "unheard_of"
    with pytest.raises(InputError, match="unheard_of"):
        pack(trainer)


def test_a_score_that_differs_ends_the_first_batch(make_trainer):
    trainer = make_trainer(GRPOTrainer, lora=False)
    pack(trainer)
    scores = trainer._get_per_token_logps_and_entropies
    assert isinstance(scores, PackedScores)
    padded = scores.padded
    scores.padded = lambda *given: (padded(*given)[0] + 0.5, None, None)
    with pytest.raises(InputError, match="0.5 nats"):
        trainer.train()
