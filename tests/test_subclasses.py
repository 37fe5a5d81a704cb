"""Subclasses and callbacks that a script written for TRL may have: with TRL's trainer as the control."""

import pytest
import torch
from peft.optimizers import create_loraplus_optimizer
from run_record import read_events, read_rows
from tiny_run import QUESTIONS, constant, vowels
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback
from trl import GRPOTrainer

from trl_prorl import ProRLTrainer


# Accelerations that change no draw of a sample.
ACCELERATED = {"fast": True, "compact_generation": "off"}
# Two groups in each micro-batch, and four micro-batches in an update.
SPLIT = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "num_generations": 4, "max_steps": 3}


class OwnColumn:
    """Adds a column in the order of the rows, and keeps the first half of every group."""

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        weight = torch.tensor([float(row["weight"]) for row in inputs])
        groups = batch["advantages"].view(-1, self.num_generations).clone()
        groups[:, self.num_generations // 2 :] = 0.0
        return {**batch, "advantages": groups.flatten(), "weight": weight}

    def _compute_loss(self, model, inputs):
        return super()._compute_loss(model, {**inputs, "advantages": inputs["advantages"] * inputs["weight"]})


class ByToken:
    """Gives every second token an advantage of its own, which TRL's loss supports."""

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        places = torch.arange(batch["completion_mask"].size(1))
        by_token = batch["advantages"][:, None] * 0.9**places * (places % 2 == 0)
        return {**batch, "advantages": by_token}


class OwnRewards:
    """Adds a bonus, with which the rewards of a group differ."""

    def _calculate_rewards(self, inputs, prompts, completions, ids):
        rewards = super()._calculate_rewards(inputs, prompts, completions, ids)
        return rewards + torch.arange(len(ids)).view(-1, 1) % 4 * 0.1


class OwnBonus:
    """Adds an entropy bonus, the only term with a gradient if all rewards are equal."""

    def compute_loss(self, model, inputs, *others, **named):
        loss = super().compute_loss(model, inputs, *others, **named)
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        length = inputs["completion_ids"].size(1)
        score = self._get_per_token_logps_and_entropies
        _, entropies, _ = score(model, ids, mask, length, compute_entropy=True)
        return loss - (entropies * inputs["completion_mask"]).mean()


class OwnSum:
    """Not a sum over rows: it depends on which of them are in a micro-batch."""

    def _compute_loss(self, model, inputs):
        return (30.0 * super()._compute_loss(model, inputs)).exp()


class OwnScores:
    """Scores at half the sharpness."""

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        logps, *others = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        return 0.5 * logps, *others


def of(mixin, trainer):
    return type(mixin.__name__, (mixin, trainer), {})


@pytest.mark.parametrize(
    ("mixin", "keys"),
    [
        (OwnColumn, {"columns": {"weight": [place % 4 for place in range(16)]}}),
        (ByToken, {}),
        (OwnRewards, {"reward": constant(1.0)}),
        (OwnBonus, {"reward": constant(1.0)}),
        (OwnSum, {}),
        (OwnScores, {"beta": 0.1}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_subclass_trains_as_with_trl(run, make_trainer, largest_difference, mixin, keys):
    keys = {**SPLIT, **keys}
    control = run(of(mixin, GRPOTrainer), **keys)
    assert largest_difference(make_trainer(GRPOTrainer, **keys), control) > 1e-3  # it has learned something
    assert largest_difference(control, run(of(mixin, ProRLTrainer), **keys)) == 0.0
    assert largest_difference(control, run(of(mixin, ProRLTrainer), **keys, **ACCELERATED)) < 1e-4


@pytest.mark.parametrize(
    "keys", [{"trust_region": "dppo_tv", "trust_region_threshold": 0.9}, {"skip_zero_rows": True}]
)
def test_advantages_by_token_with_other_keys(run, largest_difference, keys):
    """No token is outside a region of 0.9, so it trains as an unbounded clip; rows without gradient change nothing."""
    keys = {**SPLIT, **keys}
    plain = {"loss_mode": "unclipped"} if "trust_region" in keys else {}
    control = run(of(ByToken, ProRLTrainer), **SPLIT, **plain)
    assert largest_difference(control, run(of(ByToken, ProRLTrainer), **keys)) == 0.0


@pytest.mark.parametrize(
    ("keys", "of_trl"),
    [
        ({"dynamic_sampling_rounds": 1}, {}),
        ({"advantage_estimator": "group_normalized"}, {}),
        ({"drop_zero_rows": True}, {"beta": 0.1}),
    ],
    ids=lambda keys: "-".join(keys),
)
def test_rewards_of_a_subclass_count_for_our_keys(run, largest_difference, keys, of_trl):
    """By its bonus the rewards of every group differ: none is sampled again or dropped."""
    trainer = run(of(OwnRewards, ProRLTrainer), reward=constant(1.0), **keys, **of_trl)
    assert largest_difference(trainer, run(of(OwnRewards, GRPOTrainer), reward=constant(1.0), **of_trl)) < 1e-4
    assert {row["frac_reward_zero_std"] for row in read_rows(trainer)} == {0.0}


def test_scores_of_a_subclass_are_refused_beside_keys_that_score_anchors(make_trainer):
    with pytest.raises(ValueError, match="OwnScores has its own _get_per_token_logps_and_entropies"):
        make_trainer(of(OwnScores, ProRLTrainer), beta=0.1, ref_reset_every=2)


class ScoresTwice(ProRLTrainer):
    def _compute_loss(self, model, inputs):
        return super()._compute_loss(model, inputs) + super()._compute_loss(model, inputs)


def test_a_loss_that_scores_a_micro_batch_twice_is_refused(run):
    with pytest.raises(ValueError, match="_compute_loss scores a micro-batch twice"):
        run(ScoresTwice)


class OwnOptimizer(ProRLTrainer):
    """Makes optimizer and schedule without calling the methods that it overrides."""

    def create_optimizer(self, *args, **kwargs):
        if self.optimizer is None:
            settings = {"lr": 5e-3, "loraplus_lr_ratio": 4.0}
            self.optimizer = create_loraplus_optimizer(self.model, torch.optim.AdamW, **settings)
        return self.optimizer

    def create_scheduler(self, num_training_steps, optimizer=None):
        if self.lr_scheduler is None:
            self.lr_scheduler = LambdaLR(self.optimizer, lambda step: 1 / (1 + step))
        return self.lr_scheduler


class CallsOurs(OwnOptimizer):
    def create_optimizer(self, *args, **kwargs):
        super().create_optimizer()
        return ProRLTrainer.create_optimizer(self)

    def create_scheduler(self, *args, **kwargs):
        super().create_scheduler(*args, **kwargs)
        return ProRLTrainer.create_scheduler(self, *args, **kwargs)


@pytest.mark.parametrize(
    "keys",
    [
        {"optimizer_reset_rewarmup_steps": 4},
        {"optimizer_reset": "hard", "lr_scheduler_type": "linear"},
        {"optimizer_reset": "scale(0.5, 0.5)"},
        {"lora_growth_every": 2, "lora_growth_step": 1, "lora_growth_max_rank": 5},
    ],
    ids=lambda keys: next(iter(keys)),
)
def test_resets_reach_the_optimizer_of_a_subclass(run, largest_difference, keys):
    """LoRA+, whose groups have different rates."""
    keys = {"beta": 0.05, "ref_reset_every": 2, **keys}
    trainer = run(OwnOptimizer, **keys)
    assert [event["step_applied"] for event in read_events(trainer)][:1] == [2]
    assert largest_difference(trainer, run(CallsOurs, **keys)) == 0.0


class PlainSGD(ProRLTrainer):
    def create_optimizer(self, *args, **kwargs):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        return self.optimizer


def test_an_optimizer_of_a_subclass_without_memory_is_refused(run):
    with pytest.raises(ValueError, match="optimizer_reset has no effect with torch.optim.sgd.SGD"):
        run(PlainSGD, beta=0.05, ref_reset_every=2, optimizer_reset="asym")


class Reweigh(TrainerCallback):
    """Sets other weights of the reward functions after a step, as a curriculum does."""

    trainer = None

    def on_step_end(self, args, state, control, **kwargs):
        self.trainer.reward_weights = torch.tensor([0.0, 1.0])


def test_weights_that_a_callback_sets_count_everywhere(make_trainer):
    """In the evaluation, and in the choice of groups to replace: the function of weight 1 is constant."""
    evaluated = {"eval_strategy": "steps", "eval_steps": 4, "per_device_eval_batch_size": 4}
    for cls, keys in ((GRPOTrainer, {}), (ProRLTrainer, {"dynamic_sampling_rounds": 1})):
        callback = Reweigh()
        given = {"callbacks": [callback], **QUESTIONS}
        trainer = make_trainer(cls, reward=[vowels, constant(0.25)], trainer_kwargs=given, **evaluated, **keys)
        callback.trainer = trainer
        trainer.train()
        (evaluation,) = [log for log in trainer.state.log_history if "eval_reward" in log]
        assert evaluation["eval_reward"] == 0.25
    assert [row["groups_undecided"] for row in read_rows(trainer)] == [0.0, 0.0, 2.0, 2.0]
