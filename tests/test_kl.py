"""KL estimators: hand-computed values, and gradients against the enumeration of every completion."""

import itertools
import math

import pytest
import torch

from trl_prorl.objective.kl import ESTIMATORS, gradient_bias, importance_ratio, kl_penalty, kl_values


VOCABULARY, LENGTH = 3, 3
PREFIXES = [p for n in range(LENGTH) for p in itertools.product(range(VOCABULARY), repeat=n)]
ROW = {prefix: number for number, prefix in enumerate(PREFIXES)}
COMPLETIONS = list(itertools.product(range(VOCABULARY), repeat=LENGTH))


def table(seed: int) -> torch.Tensor:
    """A policy as logits per prefix, shape (prefixes, vocabulary), float64."""
    return torch.randn(len(PREFIXES), VOCABULARY, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def completion_logps(logits: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of the tokens of every completion, shape (27, 3)."""
    logps = logits.log_softmax(-1)
    return torch.stack([torch.stack([logps[ROW[c[:t]], c[t]] for t in range(LENGTH)]) for c in COMPLETIONS])


def exact_gradient(theta, sampler, anchor):
    """Gradient of the expected per-token reverse KL, over states visited by the sampler."""
    theta = theta.clone().requires_grad_()
    kl = (theta.softmax(-1) * (theta.log_softmax(-1) - anchor.log_softmax(-1))).sum(-1)
    weight = completion_logps(sampler).sum(-1).exp()
    total = sum(weight[i] * kl[ROW[c[:t]]] for i, c in enumerate(COMPLETIONS) for t in range(LENGTH))
    return torch.autograd.grad(total, theta)[0]


def estimated_gradient(theta, sampler, anchor, estimator, corrected, level="token"):
    """Expected gradient of the penalty, every completion weighted by the sampler's probability."""
    theta = theta.clone().requires_grad_()
    logps, old = completion_logps(theta), completion_logps(sampler)
    ratio = importance_ratio(logps, old, torch.ones_like(old), level) if corrected else None
    penalty = kl_penalty(logps, completion_logps(anchor), estimator, ratio)
    return torch.autograd.grad((old.sum(-1).exp()[:, None] * penalty).sum(), theta)[0]


def relative_error(theta, sampler, anchor, *args):
    exact = exact_gradient(theta, sampler, anchor)
    return ((estimated_gradient(theta, sampler, anchor, *args) - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("on_policy", [True, False])
@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_gradient_is_exact_where_the_table_says_so_and_biased_where_it_does_not(estimator, corrected, on_policy):
    theta, anchor = table(0), table(1)
    sampler = theta if on_policy else theta + 0.3 * table(2)
    error = relative_error(theta, sampler, anchor, estimator, corrected)
    if gradient_bias(estimator, corrected, "token", on_policy) is None:
        assert error < 1e-9
    else:
        assert error > 1e-2


def test_uncorrected_k1_has_zero_expected_gradient_on_policy():
    gradient = estimated_gradient(table(0), table(0), table(1), "k1", False)
    assert gradient.abs().max() < 1e-12


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_sequence_ratio_is_exact_for_no_estimator(estimator):
    theta, anchor = table(0), table(1)
    assert relative_error(theta, theta + 0.3 * table(2), anchor, estimator, True, "sequence") > 1e-2
    assert gradient_bias(estimator, True, "sequence", False) is not None


def test_old_policy_anchor_gradient_is_exact_off_policy():
    # B: the anchor is the sampler itself.
    theta, sampler = table(0), table(0) + 0.3 * table(2)
    assert relative_error(theta, sampler, sampler, "k3", True) < 1e-9
    assert relative_error(theta, sampler, sampler, "k2", False) > 1e-2


def test_values_by_hand():
    logps, anchor = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -1.0]])
    assert torch.allclose(kl_values(logps, anchor, "k1"), torch.tensor([[0.5, -1.0]]))
    assert torch.allclose(kl_values(logps, anchor, "k2"), torch.tensor([[0.125, 0.5]]))
    k3 = [math.exp(-0.5) - 1 + 0.5, math.exp(1.0) - 1 - 1.0]
    assert torch.allclose(kl_values(logps, anchor, "k3"), torch.tensor([k3]))


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_expected_value_is_the_kl(estimator):
    policy, anchor = table(3)[0], table(4)[0]
    exact = (policy.softmax(-1) * (policy.log_softmax(-1) - anchor.log_softmax(-1))).sum()
    values = kl_values(policy.log_softmax(-1), anchor.log_softmax(-1), estimator)
    assert torch.allclose((policy.softmax(-1) * values).sum(), exact)


def test_sequence_ratio_is_the_geometric_mean_over_counted_tokens():
    logps, old = torch.tensor([[-1.0, -2.0, -9.0]]), torch.tensor([[-1.2, -1.4, -1.0]])
    ratio = importance_ratio(logps, old, torch.tensor([[1, 1, 0]]), "sequence")
    assert torch.allclose(ratio, torch.tensor([[math.exp((0.2 - 0.6) / 2)]]))


def test_bad_input_is_named():
    for ask in (
        lambda: kl_values(torch.zeros(1, 2), torch.zeros(1, 2), "k4"),
        lambda: gradient_bias("k4", True, "token", False),
    ):
        with pytest.raises(ValueError, match="kl_estimator='k4'"):
            ask()
    with pytest.raises(ValueError, match=r"\(1, 2\).*\(2, 1\)"):
        kl_values(torch.zeros(1, 2), torch.zeros(2, 1))


def test_the_corrected_k3_to_the_sampler_is_rpgs_penalty():
    """
    RPG (arXiv 2505.17508), un-normalised reverse KL to the iterate: w (log w − 1) + 1 with w = π_θ/π_old, whose
    derivative in log π_θ is w log w. `recipes/prior_art/rpg_urkl.yaml` says so.
    """
    old = torch.tensor([[-1.0, -0.5, -3.0]], dtype=torch.float64)
    logps = torch.tensor([[-0.5, -0.5, -4.0]], dtype=torch.float64, requires_grad=True)
    ratio = importance_ratio(logps, old, torch.ones_like(old), "token")
    penalty = kl_penalty(logps, old, "k3", ratio)
    # log w = 0.5, 0, −1: w (log w − 1) + 1 = 1 − 0.5 e^0.5, 0, 1 − 2/e; w log w = 0.5 e^0.5, 0, −1/e
    assert penalty.tolist()[0] == pytest.approx([1 - 0.5 * math.exp(0.5), 0.0, 1 - 2 / math.e])
    (gradient,) = torch.autograd.grad(penalty.sum(), logps)
    assert gradient.tolist()[0] == pytest.approx([0.5 * math.exp(0.5), 0.0, -1 / math.e])
