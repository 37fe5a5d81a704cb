"""The KL in the reward: numbers worked out from a batch's log-probabilities, and a loss without a KL term."""

import pytest
import torch
from tiny_run import watched

from trl_prorl.objective.advantages import estimate


KEYS = {"beta": 0.5, "kl_in": "reward", "advantage_estimator": "global_normalized", "num_iterations": 2}


def batches_of(trainer):
    """What the trainer trains on, generation batch by generation batch, and the task's rewards."""
    sampled, made = watched(trainer, "_sample"), watched(trainer, "_generate_and_score_completions")
    trainer.train()
    return made, [outcome.rewards for _, outcome in sampled]


@pytest.mark.parametrize("anchor", ["beta", "beta_base"])
@pytest.mark.parametrize("estimator", ["global_normalized", "rloo"])
def test_by_hand(make_trainer, trained_adapter, anchor, estimator):
    keys = {**KEYS, "beta": 0.0, anchor: 0.5, "advantage_estimator": estimator, "fast": True, "max_steps": 4}
    seen, rewards = batches_of(make_trainer(**keys))
    name = {"beta": "ref", "beta_base": "base"}[anchor]
    assert len(seen) == 2
    for batch, reward in zip(seen, rewards, strict=True):
        mask = batch["completion_mask"].double()
        ratio = batch["old_per_token_logps"].double() - batch[f"{name}_per_token_logps"].double()
        adjusted = reward[:, 0] - 0.5 * (ratio * mask).sum(1).float()
        expected = estimate(adjusted, 4, estimator)
        assert batch["advantages"].tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    assert (ratio * mask).abs().max() > 1e-4  # the policy has moved


def test_the_loss_has_no_kl_term(run, largest_difference):
    """At the first batch π_old is the reference: the reward loses nothing, and two updates are those without KL."""
    keys = {"advantage_estimator": "global_normalized", "num_iterations": 2, "max_steps": 2}
    ends = []
    for more in ({}, {"beta": 0.5, "kl_in": "reward"}, {"beta": 0.5}):
        torch.manual_seed(3)
        ends.append(run(**keys, **more))
    assert largest_difference(ends[0], ends[1]) < 1e-7 < 1e-5 < largest_difference(ends[0], ends[2])


def test_where_it_is_not_asked_for_nothing_is_taken(make_trainer):
    trainer = make_trainer(beta=0.5)
    assert trainer.anchors.in_reward({}) is None
