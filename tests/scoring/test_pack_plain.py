"""`pack` on TRL's own trainer: its weights, from fewer positions."""

import pytest
import torch
from peft import IA3Config, LoraConfig
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


def test_rows_without_a_token_in_the_loss_are_not_compared(make_trainer):
    """Completions that are cut have none."""
    keys = {"mask_truncated_completions": True, "max_completion_length": 4, "max_steps": 1}
    trainer = make_trainer(GRPOTrainer, **KEYS | keys)
    trainer.model.generation_config.eos_token_id = trainer.processing_class.eos_token_id
    pack(trainer)
    trainer.train()
    assert trainer.state.log_history[0]["completions/clipped_ratio"] == 1.0


def test_a_model_that_is_not_listed_is_refused(make_trainer):
    trainer = make_trainer(GRPOTrainer, lora=False)
    trainer.model.config.model_type = "unheard_of"
    with pytest.raises(InputError, match="unheard_of"):
        pack(trainer)


def test_our_own_trainer_is_refused(make_trainer):
    with pytest.raises(InputError, match="ProRLTrainer does so by itself, with pack_groups='on'"):
        pack(make_trainer())


@pytest.mark.parametrize(
    "adapter, said",
    [
        (IA3Config(target_modules=["q_proj"], feedforward_modules=[]), "IA3"),
        (LoraConfig(r=4, target_modules=["q_proj"], lora_dropout=0.1), "disable_dropout"),
    ],
    ids=["IA3", "dropout"],
)
def test_adapters_that_cannot_be_packed_are_refused(make_trainer, adapter, said):
    trainer = make_trainer(GRPOTrainer, trainer_kwargs={"peft_config": adapter})
    score = trainer._get_per_token_logps_and_entropies
    with pytest.raises(ValueError, match=said):
        pack(trainer)
    assert trainer._get_per_token_logps_and_entropies == score


def test_a_score_that_differs_ends_the_first_batch(make_trainer):
    trainer = make_trainer(GRPOTrainer, lora=False)
    pack(trainer)
    scores = trainer._get_per_token_logps_and_entropies
    assert isinstance(scores, PackedScores)
    padded = scores.padded
    scores.padded = lambda *given: (padded(*given)[0] + 0.5, None, None)
    with pytest.raises(InputError, match="0.5 nats"):
        trainer.train()


def test_rows_whose_tokens_are_ranked_are_not_packed(make_trainer, caplog):
    """Tokens with equal entropies are at the quantile together, and rounding would separate them."""
    with pytest.raises(InputError, match="top_entropy_quantile=0.5"):
        pack(make_trainer(GRPOTrainer, top_entropy_quantile=0.5))
    trainer = make_trainer(pack_groups="auto", top_entropy_quantile=0.5)
    assert not trainer.acceleration.packs
    assert any("without pack_groups: top_entropy_quantile=0.5" in line for line in caplog.messages)
    assert make_trainer(pack_groups="auto").acceleration.packs
