"""One completion a prompt (REINFORCE++): advantages by hand, and what the record has of it."""

import math

import pytest
import torch
from run_record import read_rows
from tiny_run import QUESTIONS, record_results

from trl_prorl.advantages import UNGROUPED


OVER_BATCH = {"advantage_estimator": "global_normalized"}
ALONE = {"num_generations": 1, **OVER_BATCH}
# The mean of eight is 3/4, and the squares of the differences sum to 6.5.
REWARDS = [1.0, 0.0, 0.0, 3.0, 0.5, 0.5, 0.5, 0.5]
DEVIATION = math.sqrt(6.5 / 7) + 1e-4
BY_HAND = {"raw": REWARDS, "global_normalized": [(reward - 0.75) / DEVIATION for reward in REWARDS]}


def known_rewards(completions, **columns):
    return REWARDS[: len(completions)]  # an evaluation has fewer


@pytest.mark.parametrize("estimator", UNGROUPED)
def test_the_advantages_of_a_step_by_hand(make_trainer, estimator):
    trainer = make_trainer(reward=known_rewards, max_steps=1, num_generations=1, advantage_estimator=estimator)
    batches = record_results(trainer, "_generate_and_score_completions")
    trainer.train()
    (batch,) = batches
    assert batch["advantages"].tolist() == pytest.approx(BY_HAND[estimator], abs=1e-6)
    assert batch["group"].tolist() == list(range(8))
    prompts = {tuple(row) for row in batch["prompt_ids"].tolist()}
    assert len(prompts) == 8, "each completion has a prompt of its own"


def test_the_kl_comes_off_the_reward_before_it_is_compared(make_trainer):
    """Of the second batch, whose policy is two updates from the reference."""
    trainer = make_trainer(reward=known_rewards, beta=0.5, kl_in="reward", max_steps=3, **ALONE)
    batches = record_results(trainer, "_generate_and_score_completions")
    trainer.train()
    batch = batches[1]
    log_ratios = (batch["old_per_token_logps"] - batch["ref_per_token_logps"]) * batch["completion_mask"]
    penalties = 0.5 * log_ratios.sum(dim=1)
    assert penalties.abs().max() > 1e-3
    rewards = torch.tensor(REWARDS) - penalties
    expected = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    assert torch.allclose(batch["advantages"], expected, atol=1e-5)


def test_the_record_has_what_is_measured_over_the_batch_and_nothing_within_a_group(run):
    trainer = run(
        reward=known_rewards,
        trainer_kwargs=QUESTIONS,
        eval_strategy="steps",
        eval_steps=2,
        per_device_eval_batch_size=2,
        **ALONE,
    )
    deviation = math.sqrt(6.5 / 7)
    for row in read_rows(trainer):
        assert row["reward"] == pytest.approx(0.75)
        assert row["reward_std"] == pytest.approx(deviation)
        assert row["advantage_std"] == pytest.approx(deviation / DEVIATION)
        assert "frac_reward_zero_std" not in row
