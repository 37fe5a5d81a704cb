"""Advantages against numbers made by hand, TRL, and the policy gradient itself."""

import math

import pytest
import torch
from trl import GRPOTrainer

from trl_prorl.objective.advantages import ESTIMATORS, estimate


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
    surrogate = sum(
        chance[i].detach() * (estimate(reward[group], 3, estimator) * logps[group]).sum()
        for i, group in enumerate(groups)
    )
    (estimated,) = torch.autograd.grad(surrogate, logits)
    assert torch.allclose(estimated, exact, atol=1e-12)


@pytest.mark.parametrize("estimator", sorted(set(ESTIMATORS) - {"raw"}))
def test_equal_rewards_have_no_advantage_whatever_their_mean_is_rounded_to(estimator):
    for size in (2, 3, 7, 8, 16):
        for reward in [i / 97 for i in range(98)] + [-0.1, 1e6 / 3]:
            assert estimate(torch.full((size,), reward), size, estimator).tolist() == [0.0] * size
    # The sums of two reward functions differ in their last digit only.
    first, second = torch.tensor([0.1]) + torch.tensor([0.6]), torch.tensor([0.7])
    assert first != second and estimate(torch.cat([first, second]), 2, estimator).tolist() == [0.0, 0.0]
    assert estimate(torch.tensor([0.7, 0.70001]), 2, estimator)[1] > 0.0
    if estimator == "max":
        tied = torch.cat([first, second, torch.zeros(2)])
        assert estimate(tied, 4, estimator).tolist() == pytest.approx([0.35, 0.35, 0.0, 0.0])


def test_group_normalized_is_trl_s_own(run, largest_difference):
    keys = {"max_steps": 4, "learning_rate": 1e-3}
    assert largest_difference(run(GRPOTrainer, **keys), run(advantage_estimator="group_normalized", **keys)) < 1e-6
    trl, ours = run(GRPOTrainer, scale_rewards="none", **keys), run(advantage_estimator="centered", **keys)
    assert largest_difference(trl, ours) < 1e-6
    assert largest_difference(ours, run(advantage_estimator="max", **keys)) > 1e-4


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_batch_of_other_rewards_counts_only_where_a_batch_does(estimator):
    every = torch.tensor(GROUPS).flatten()
    some = estimate(every[:4], 4, estimator, batch=every)
    assert some.tolist() == pytest.approx(BY_HAND[estimator][:4], abs=1e-6)
