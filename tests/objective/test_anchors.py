"""An anchor is one object: what follows from the list of them, when each is scored, and what TRL adds of its own."""

from types import SimpleNamespace

import pytest
from transformers import TrainerCallback
from trl import GRPOTrainer

from trl_prorl import ProRLConfig, ProRLTrainer
from trl_prorl.kl import Anchors


def configured(tmp_path, **keys):
    batch = {"per_device_train_batch_size": 4, "num_generations": 4, "gradient_accumulation_steps": 1}
    args = ProRLConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none", **batch, **keys)
    anchors = Anchors(args)
    for anchor in anchors:
        anchor.model = SimpleNamespace() if anchor.is_on else None
    return anchors


REUSED = {"num_iterations": 2, "beta": 0.1}  # π_old is another policy in the second pass


@pytest.mark.parametrize(
    "keys, scored",
    [
        ({}, [[], [], [], []]),
        ({"beta": 0.1}, [["ref"]] * 4),
        ({"beta": 0.1, "ref_compute": "naive_epoch"}, [[]] * 4),
        ({"beta_base": 0.1, "base_anchor_every": 3}, [["base"], [], [], ["base"]]),
        (REUSED, [["ref", "old"]] * 4),
        (REUSED | {"reuse_old_logps": True}, [["ref"]] * 4),
        (REUSED | {"beta": 0.0, "beta_old": 0.1}, [["old"]] * 4),
    ],
    ids=str,
)
def test_when_an_anchor_scores_a_generation_batch(tmp_path, keys, scored):
    anchors = configured(tmp_path, **keys)
    assert [[anchor.name for anchor in anchors.to_score({}, generation)] for generation in range(4)] == scored
    there = {anchor.column: None for anchor in anchors}
    assert anchors.to_score(there, 0) == []


@pytest.mark.parametrize(
    "keys, in_loss", [({}, 0.1), ({"kl_estimator": "k2"}, 0.0), ({"beta_old": 0.1}, 0.0)], ids=str
)
def test_trl_adds_its_kl_only_where_the_terms_are_not_ours(make_trainer, monkeypatch, keys, in_loss):
    trainer = make_trainer(beta=0.1, num_iterations=2, max_steps=4, **keys)
    assert trainer.beta == 0.1 and trainer.reference is not None
    seen = []
    compute = GRPOTrainer._compute_loss

    def watched(self, model, inputs):
        seen.append(self.beta)
        if len(seen) == 3:
            raise ZeroDivisionError
        return compute(self, model, inputs)

    monkeypatch.setattr(GRPOTrainer, "_compute_loss", watched)
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    assert seen == [in_loss] * 3
    assert trainer.beta == 0.1  # after a loss that failed, too


def test_a_coefficient_that_a_script_sets_holds(make_trainer, largest_difference):
    trainers = []
    for cls in (GRPOTrainer, ProRLTrainer):
        trainer = make_trainer(cls, beta=0.1, max_steps=2)
        trainer.beta = 0.0
        trainer.train()
        trainers.append(trainer)
    assert trainers[1].beta == 0.0
    assert largest_difference(*trainers) == 0.0


class Raises(TrainerCallback):
    """Sets the coefficient after a step, as a curriculum does."""

    trainer = None

    def on_step_end(self, args, state, control, **kwargs):
        self.trainer.beta = 0.3


@pytest.fixture
def trained_with_a_raise(make_trainer):
    def train(cls, **keys):
        callback = Raises()
        trainer = make_trainer(cls, trainer_kwargs={"callbacks": [callback]}, num_iterations=1, **keys)
        callback.trainer = trainer
        trainer.beta = 0.0
        trainer.train()
        return trainer

    return train


def test_a_coefficient_that_a_callback_raises(trained_with_a_raise, largest_difference):
    """TRL scores the model under the adapter; our keys need a reference that was made with the trainer."""
    control = trained_with_a_raise(GRPOTrainer)
    assert largest_difference(control, trained_with_a_raise(ProRLTrainer)) == 0.0
    ours = trained_with_a_raise(ProRLTrainer, beta=0.1, reuse_old_logps=True, pack_groups="on")
    assert largest_difference(control, ours) < 1e-4
