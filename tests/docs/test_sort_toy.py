"""docs/examples/sort_toy: losses and rewards against all 125 responses."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from doc_pages import ROOT


sys.path.append(str(ROOT / "docs" / "examples" / "sort_toy"))

import run  # noqa: E402
from run import EVERY_RESPONSE, LOSSES, PROMPTS, VARIANTS, Batch, Setting, Sorter  # noqa: E402


EXACT = 1e-12  # of gradients of about 0.01 to 0.1, in float64
EVERY = EVERY_RESPONSE.expand(len(PROMPTS), -1, -1)


def chosen(logps):
    """Log-probabilities of the tokens of every response, shape `(3, 125, 3)`."""
    return logps[:, [0, 1, 2], EVERY_RESPONSE]


def exact(function):
    """The value of a function of the policy's log-probabilities, and its gradient in the weights."""
    policy = Sorter(0)
    value = function(policy())
    value.backward()
    return value.item(), torch.cat([param.grad.flatten() for param in policy.parameters()])


def loss_of(batch, **setting):
    return exact(lambda logps: run.objective(logps, batch, Setting(**setting)))


@pytest.fixture(scope="module")
def old():
    """The policy a few updates ago: ratios lie between 0.6 and 1.6."""
    policy = Sorter(0)
    generator = np.random.default_rng(5)
    with torch.no_grad():
        for param in policy.parameters():
            param += 0.05 * torch.tensor(generator.normal(size=param.shape))
        return policy()


@pytest.fixture(scope="module")
def anchor():
    return Sorter(1)().detach()


def every_response(old, anchor, advantages):
    """A batch in which every response counts by its probability under the policy that sampled: an exact mean."""
    weights = chosen(old).sum(dim=-1).exp() / len(PROMPTS)
    return Batch(EVERY, chosen(old), chosen(anchor), advantages, weights)


def reward_table(reward):
    """By loops, from the words of the page."""
    table = torch.zeros(EVERY.shape[:2], dtype=torch.float64)
    for p, prompt in enumerate(PROMPTS.tolist()):
        for r, response in enumerate(EVERY_RESPONSE.tolist()):
            if reward == "distance":
                table[p, r] = sum(a == b for a, b in zip(response, sorted(prompt), strict=True)) / 3
            else:
                pairs = [response[0] <= response[1], response[1] <= response[2]]
                table[p, r] = (sum(number in response for number in prompt) + sum(pairs)) / 5
    return table


@pytest.mark.parametrize("loss", LOSSES)
def test_the_gradient_before_the_first_update_is_that_of_the_expected_reward(loss):
    rewards = reward_table("inclusion_ordering")
    _, gradient = exact(lambda logps: (chosen(logps).sum(dim=-1).exp() * rewards).sum() / len(PROMPTS))
    policy = Sorter(0)().detach()
    mean = (chosen(policy).sum(dim=-1).exp() * rewards).sum(dim=1, keepdim=True)
    for advantages in (rewards, rewards - mean):  # a baseline changes nothing in the mean
        _, found = loss_of(every_response(policy, policy, advantages), loss=loss)
        assert (found + gradient / 3).abs().max() < EXACT  # a mean over three tokens, and a loss is descended
    assert gradient.abs().max() > 1e-2


@pytest.mark.parametrize("loss, epsilon", [("unclipped", 0.0), ("clipped", 0.01), ("clipped", 0.2)])
def test_the_gradient_after_some_updates_is_that_of_the_surrogate(loss, epsilon, old):
    advantages = reward_table("distance") - 0.4
    batch = every_response(old, old, advantages)

    def surrogate(logps):
        ratio = (chosen(logps) - chosen(old)).exp()
        gain = ratio * advantages[..., None]
        if loss == "clipped":  # no gain beyond the bound on the side of the advantage
            better = advantages[..., None] > 0
            beyond = torch.where(better, ratio > 1 + epsilon, ratio < 1 - epsilon)
            bound = 1 + epsilon * torch.where(better, 1, -1).double()
            gain = torch.where(beyond, bound * advantages[..., None], gain)
        return -(batch.weights * gain.mean(dim=-1)).sum()

    value, gradient = exact(surrogate)
    found, by_loss = loss_of(batch, loss=loss, epsilon=epsilon)
    assert found == pytest.approx(value, abs=EXACT)
    assert (by_loss - gradient).abs().max() < EXACT


def test_k3_times_the_ratio_has_the_gradient_of_the_kl_and_k3_alone_has_not(old, anchor):
    value, gradient = exact(lambda logps: (logps.exp() * (logps - anchor)).sum(dim=-1).mean())
    batch = every_response(old, anchor, torch.zeros(EVERY.shape[:2]))
    found, corrected = loss_of(batch, anchor="reference", beta=0.7, bias_correction=True)
    assert found == pytest.approx(0.7 * value, abs=EXACT)
    assert (corrected - 0.7 * gradient).abs().max() < EXACT
    _, alone = loss_of(batch, anchor="reference", beta=0.7)
    assert (alone - corrected).abs().max() > 1e-3


@pytest.mark.parametrize("reward", ["inclusion_ordering", "distance"])
def test_rewards(reward):
    expected = reward_table(reward)
    assert torch.equal(run.rewards_of(EVERY, reward), expected)
    # Only the sorted prompt has the full reward.
    best = [EVERY_RESPONSE[row == 1.0].tolist() for row in expected]
    assert best == [[sorted(prompt)] for prompt in PROMPTS.tolist()]
    # By hand, 0 1 1 for 1 0 2: the places of 0 and 1 are right; 1 and 0 occur, both pairs are in order.
    place = EVERY_RESPONSE.tolist().index([0, 1, 1])
    assert expected[0, place].item() == pytest.approx({"distance": 2 / 3, "inclusion_ordering": 4 / 5}[reward])


def test_a_sample_is_the_first_number_up_to_which_the_probabilities_exceed_the_random_one():
    logps = torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.0625]).double().log().expand(1, 3, 5)
    uniform = np.array([[[0.0, 0.49, 0.51], [0.76, 0.88, 0.95], [0.74, 0.99, 1.0 - 2**-53]]])
    assert run.sample(logps, uniform).tolist() == [[[0, 0, 1], [2, 3, 4], [1, 4, 4]]]


def rewards(variant, **keys):
    return run.train(replace(Setting(**VARIANTS[variant]), **keys)).tolist()


def test_each_variant_is_another_run():
    """π_old is the policy until the first update on its samples, A's reference is fixed until the first reset."""
    one_update = {"epochs": 3, "inner_steps": 1}
    old = "B (a different objective)"
    assert rewards(old, **one_update) == rewards("no KL", **one_update) != rewards("fixed reference", **one_update)
    curves = {variant: rewards(variant, epochs=11, inner_steps=3) for variant in VARIANTS}
    assert len({curve[-1] for curve in curves.values()}) == len(VARIANTS)
    for variant, curve in curves.items():
        if variant not in ("no KL", old):
            assert curve[:10] == curves["fixed reference"][:10]
