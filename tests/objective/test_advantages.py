"""Advantages, the ratio and the weights of tokens: by hand, against TRL, and against the policy gradient itself."""

import math

import pytest
import torch
from run_record import read_rows
from tiny_run import MovedEveryGeneration
from trl import GRPOTrainer

from trl_prorl import ProRLConfig
from trl_prorl.advantages import ESTIMATORS, estimate
from trl_prorl.kl import token_weights
from trl_prorl.supported import LOSS_TYPES


GROUPS = [1.0, 0.0, 0.0, 3.0], [0.5, 0.5, 0.5, 0.5]
S = math.sqrt(2.0)  # standard deviation of 0, −1, −1, 2 over 3
# Of all eight centred rewards: squares 0, 1, 1, 4, 0, 0, 0, 0 over 7.
B = math.sqrt(6 / 7)
BY_HAND = {
    "raw": [1.0, 0.0, 0.0, 3.0, 0.5, 0.5, 0.5, 0.5],
    "centered": [0.0, -1.0, -1.0, 2.0, 0, 0, 0, 0],
    "group_normalized": [0.0, -1 / (S + 1e-4), -1 / (S + 1e-4), 2 / (S + 1e-4), 0, 0, 0, 0],
    "batch_normalized": [0.0, -1 / (B + 1e-4), -1 / (B + 1e-4), 2 / (B + 1e-4), 0, 0, 0, 0],
    # The mean is 3/4, and the squares of the differences sum to 6.5.
    "global_normalized": [x / (math.sqrt(6.5 / 7) + 1e-4) for x in (0.25, -0.75, -0.75, 2.25, *[-0.25] * 4)],
    "rloo": [1 - 1.0, 0 - 4 / 3, 0 - 4 / 3, 3 - 1 / 3, 0, 0, 0, 0],
    "max": [0.0, 0.0, 0.0, 3 - 1.0, 0, 0, 0, 0],
    "best_of_group": [0.0, 0.0, 0.0, 3 - 1.0, 0, 0, 0, 0],
}


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_by_hand(estimator):
    advantages = estimate(torch.tensor(GROUPS).flatten(), 4, estimator)
    assert advantages.tolist() == pytest.approx(BY_HAND[estimator], abs=1e-6)


@pytest.mark.parametrize(
    "group, best_over_mean, best_of_group",
    [
        # The mean is 1/2: both of the best have it less; neither is better than the best of the others.
        ([1.0, 1.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]),
        ([1.0, 0.0, 0.0, 0.0], [0.75, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]),
        ([1.0, 1.0, 1.0, 0.0], [0.25, 0.25, 0.25, 0.0], [0.0, 0.0, 0.0, 0.0]),
        ([0.0, 0.5, 0.25, 0.25], [0.0, 0.25, 0.0, 0.0], [0.0, 0.25, 0.0, 0.0]),
        ([-3.0, -1.0, -1.0, -3.0], [0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]),
        ([1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]),
        # Of three that were scored the mean is 2/3.
        ([1.0, math.nan, 0.0, 1.0], [1 / 3, 0.0, 0.0, 1 / 3], [0.0, 0.0, 0.0, 0.0]),
        ([math.nan, 5.0, math.nan, math.nan], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_the_best_by_hand(group, best_over_mean, best_of_group):
    assert estimate(torch.tensor(group), 4, "max").tolist() == pytest.approx(best_over_mean)
    assert estimate(torch.tensor(group), 4, "best_of_group").tolist() == pytest.approx(best_of_group)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_what_was_not_scored_counts_for_nobody(estimator):
    rewards = torch.tensor([1.0, 0.0, 0.0, 3.0])
    with_gap = torch.tensor([1.0, 0.0, math.nan, 0.0, 3.0])
    advantages = estimate(with_gap, 5, estimator)
    assert advantages[2] == 0.0
    assert advantages[[0, 1, 3, 4]].tolist() == pytest.approx(estimate(rewards, 4, estimator).tolist(), abs=1e-6)
    assert estimate(torch.full((4,), math.nan), 4, estimator).tolist() == [0.0] * 4


@pytest.mark.parametrize("estimator", ["raw", "rloo", "best_of_group"])
def test_the_gradient_that_it_estimates_is_right(estimator):
    """Enumeration of every group of three actions: the expected estimate is the objective's gradient."""
    logits = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64, requires_grad=True)
    reward = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    logps = logits.log_softmax(0)
    probs = logps.exp()
    groups = torch.cartesian_prod(*[torch.arange(3)] * 3)
    chance = probs[groups].prod(dim=1)
    value = reward[groups].amax(dim=1) if estimator == "best_of_group" else reward[groups].sum(dim=1)
    (exact,) = torch.autograd.grad((chance * value).sum(), logits, retain_graph=True)
    advantages = torch.stack([estimate(reward[group], 3, estimator) for group in groups])
    surrogate = (chance.detach() * (advantages * logps[groups]).sum(dim=1)).sum()
    (estimated,) = torch.autograd.grad(surrogate, logits)
    assert torch.allclose(estimated, exact, atol=1e-12)


@pytest.mark.parametrize("estimator", sorted(set(ESTIMATORS) - {"raw"}))
def test_equal_rewards_have_no_advantage_whatever_their_mean_is_rounded_to(estimator):
    for size in (2, 3, 7, 8, 16):
        for reward in [i / 97 for i in range(98)] + [-0.1, 1e6 / 3]:
            assert estimate(torch.full((size,), reward), size, estimator).tolist() == [0.0] * size
    # The sums of two reward functions differ in their last digit only.
    first = torch.tensor([0.1]) + torch.tensor([0.6])
    second = torch.tensor([0.7])
    assert first != second
    assert estimate(torch.cat([first, second]), 2, estimator).tolist() == [0.0, 0.0]
    assert estimate(torch.tensor([0.7, 0.70001]), 2, estimator)[1] > 0.0
    if estimator == "max":
        tied = torch.cat([first, second, torch.zeros(2)])
        assert estimate(tied, 4, estimator).tolist() == pytest.approx([0.35, 0.35, 0.0, 0.0])


def test_group_normalized_is_trl_s_own(run, largest_difference):
    keys = {"max_steps": 3, "learning_rate": 1e-3}
    assert largest_difference(run(GRPOTrainer, **keys), run(advantage_estimator="group_normalized", **keys)) < 1e-6
    trl = run(GRPOTrainer, scale_rewards="none", **keys)
    ours = run(advantage_estimator="centered", **keys)
    assert largest_difference(trl, ours) < 1e-6
    assert largest_difference(ours, run(advantage_estimator="max", **keys)) > 1e-4


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_batch_of_other_rewards_counts_only_where_a_batch_does(estimator):
    every = torch.tensor(GROUPS).flatten()
    some = estimate(every[:4], 4, estimator, batch=every)
    assert some.tolist() == pytest.approx(BY_HAND[estimator][:4], abs=1e-6)


LOGPS = torch.tensor([[-1.0, -0.5, -2.0], [-0.7, -0.2, -0.1]])
OLD = torch.tensor([[-1.5, -0.5, -1.0], [-0.7, -1.2, -0.1]])
ADVANTAGES = torch.tensor([1.0, -2.0])
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])


def gradient(trainer, **others):
    """∂loss/∂logp of fixed log-probabilities."""
    logps = LOGPS.clone().requires_grad_()
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    trainer.acceleration.score = lambda model, *args, **kwargs: (logps, torch.zeros_like(logps), None)
    inputs = {
        "prompt_ids": torch.ones(2, 2, dtype=torch.long),
        "prompt_mask": torch.ones(2, 2, dtype=torch.long),
        "completion_ids": torch.ones(2, 3, dtype=torch.long),
        "completion_mask": MASK,
        "advantages": ADVANTAGES,
        "old_per_token_logps": OLD,
        "num_items_in_batch": torch.tensor(5),
        **others,
    }
    (result,) = torch.autograd.grad(trainer.compute_loss(trainer.model, inputs), logps)
    return result


def by_hand(weight):
    """Of loss_type grpo: the mean over completions of the means over their tokens."""
    return -weight * ADVANTAGES.unsqueeze(1) * MASK / MASK.sum(dim=1, keepdim=True) / 2


RATIO = (LOGPS - OLD).exp()
EXPECTED = {
    "no_ratio": torch.ones_like(RATIO),
    "unclipped": RATIO,
    # min(r A, clip(r) A): a ratio above 1.2 stops a positive advantage; one above 1.2 does not stop a negative one.
    "clipped": RATIO * torch.tensor([[0.0, 1.0, 1.0], [1.0, 1.0, 1.0]]),
    None: RATIO * torch.tensor([[0.0, 1.0, 1.0], [1.0, 1.0, 1.0]]),
}


@pytest.mark.parametrize("mode", EXPECTED)
def test_gradients_by_hand(make_trainer, mode):
    trainer = make_trainer(loss_mode=mode, loss_type="grpo", per_device_train_batch_size=4)
    assert torch.allclose(gradient(trainer), by_hand(EXPECTED[mode]), atol=1e-6)


FARTHER = torch.tensor([[-0.5, -0.2, -1.0], [-0.2, -0.1, 9.0]])  # the second row: 0.5 and 0.1 nats, 0.3 on average


@pytest.mark.parametrize("mode", EXPECTED)
@pytest.mark.parametrize("threshold, sampler, kept", [(0.2, None, 0), (0.4, None, 1), (0.2, OLD, 1)])
def test_samples_too_far_off_policy_are_masked_in_every_mode(make_trainer, mode, threshold, sampler, kept):
    """TRL's mask drops rows of negative advantage by their distance from the sampler, else from π_old."""
    keys = {"loss_mode": mode, "loss_type": "grpo", "per_device_train_batch_size": 4}
    if mode in (None, "clipped"):
        keys["epsilon_high"] = 0.9
    trainer = make_trainer(off_policy_mask_threshold=threshold, **keys)
    others = {} if sampler is None else {"sampling_per_token_logps": sampler}
    ratio = torch.ones_like(LOGPS) if mode == "no_ratio" else (LOGPS - FARTHER).exp()
    if mode in (None, "clipped"):
        ratio[1, 0] = 0.0  # min(r A, clip(r) A): a ratio below 0.8 stops a negative advantage
    expected = by_hand(ratio) * torch.tensor([[1.0], [float(kept)]])
    assert torch.allclose(gradient(trainer, old_per_token_logps=FARTHER, **others), expected, atol=1e-6)


def test_a_penalty_keeps_its_own_ratio(make_trainer):
    """k3 to π_old, corrected by the ratio: its gradient is ratio · log-ratio, whatever the policy gradient's ratio."""
    trainer = make_trainer(loss_mode="no_ratio", loss_type="grpo", beta_old=0.1, per_device_train_batch_size=4)
    penalty = 0.1 * RATIO * (LOGPS - OLD)
    expected = by_hand(EXPECTED["no_ratio"]) + penalty * MASK / MASK.sum(dim=1, keepdim=True) / 2
    assert torch.allclose(gradient(trainer), expected, atol=1e-6)


def test_fresh_samples_know_no_difference(run, largest_difference):
    keys = {"num_iterations": 1, "max_steps": 2, "learning_rate": 1e-3}
    first = run(**keys)
    for mode in ("no_ratio", "unclipped", "clipped"):
        assert largest_difference(first, run(loss_mode=mode, **keys)) == 0.0
    stale = {**keys, "num_iterations": 3, "learning_rate": 2e-2}
    assert largest_difference(run(loss_mode="clipped", **stale), run(**stale)) == 0.0
    assert largest_difference(run(loss_mode="no_ratio", **stale), run(loss_mode="unclipped", **stale)) > 1e-4


@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
def test_the_policy_loss_of_a_row_has_the_penalty_in_it(run, trained_adapter, loss_type):
    """Beside an entropy bonus, too, B is TRL with a KL to a reference that moves before every generation."""
    keys = {
        "lora": False,
        "loss_type": loss_type,
        "entropy_coef": 0.01,
        "max_steps": 4,
        "learning_rate": 2e-2,
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 4,
        "per_device_train_batch_size": 4,
    }
    b = run(model=trained_adapter(), beta_old=2.0, **keys)
    control = run(MovedEveryGeneration, model=trained_adapter(), beta=2.0, **keys)
    rows = read_rows(b)
    logged = [entry["policy_loss"] for entry in control.state.log_history if "policy_loss" in entry]
    assert [row["policy_loss"] for row in rows] == pytest.approx(logged, abs=1e-5)
    assert len(rows) == 4
    assert max(row["kl"] for row in rows) > 1e-3  # so that the penalty is no rounding


TWO_ROWS = torch.tensor([[1, 1, 0], [1, 0, 0]])


# The weight of each token of the first row, and of the second.
WEIGHTS_BY_HAND = {
    "row_mean": ({}, 1 / 8, 1 / 4),
    "batch_mean": ({}, 1 / 6, 1 / 6),
    "length": ({"max_completion_length": 5}, 1 / 20, 1 / 20),
    "window": ({"items_per_window": 12.0}, 1 / 12, 1 / 12),
    "row_sum": ({}, 1 / 4, 1 / 4),
}


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_weights_by_hand_with_two_accumulation_steps(loss_type):
    keys, first, second = WEIGHTS_BY_HAND[LOSS_TYPES[loss_type].aggregation]
    weights = token_weights(TWO_ROWS, loss_type, accumulation_steps=2, **keys)
    assert torch.allclose(weights, torch.tensor([[first, first, 0.0], [second, 0.0, 0.0]]))


def test_a_row_without_tokens_weighs_nothing_and_breaks_nothing():
    mask = torch.tensor([[0, 0], [1, 1]])
    for loss_type in ("grpo", "bnpo", "luspo"):
        weights = token_weights(mask, loss_type)
        assert weights[0].eq(0).all()
        assert weights.isfinite().all()
    assert token_weights(torch.tensor([[0, 1]]), "bnpo").tolist() == [[0, 1]]  # one token has the whole weight


def test_unknown_loss_is_refused():
    with pytest.raises(ValueError, match="loss_type='ppo'"):
        ProRLConfig(use_cpu=True, bf16=False, loss_type="ppo")
