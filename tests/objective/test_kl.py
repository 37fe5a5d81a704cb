"""KL estimators, their bound, and the KL in the reward: by hand, by enumeration, in training."""

import itertools
import math

import pytest
import torch
from run_record import read_rows as rows
from slow import slow_but
from tiny_run import record_results

from trl_prorl import ProRLConfig
from trl_prorl.advantages import estimate
from trl_prorl.errors import NonFiniteError
from trl_prorl.kl import (
    beyond_clamp,
    gradient_bias,
    importance_ratio,
    kl_penalty,
    kl_values,
)
from trl_prorl.supported import KL_ESTIMATORS


VOCABULARY = 3
LENGTH = 3
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
    logps = completion_logps(theta)
    old = completion_logps(sampler)
    ratio = importance_ratio(logps, old, torch.ones_like(old), level) if corrected else None
    penalty = kl_penalty(logps, completion_logps(anchor), estimator, ratio)
    return torch.autograd.grad((old.sum(-1).exp()[:, None] * penalty).sum(), theta)[0]


def relative_error(theta, sampler, anchor, *args):
    exact = exact_gradient(theta, sampler, anchor)
    return ((estimated_gradient(theta, sampler, anchor, *args) - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("on_policy", [True, False])
@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
def test_gradient_is_exact_where_the_table_says_so_and_biased_where_it_does_not(estimator, corrected, on_policy):
    theta = table(0)
    sampler = theta if on_policy else theta + 0.3 * table(2)
    exact = gradient_bias(estimator, corrected, "token", on_policy) is None
    for anchor in [table(1)] if on_policy else [table(1), sampler]:  # B's anchor is the sampler
        error = relative_error(theta, sampler, anchor, estimator, corrected)
        assert error < 1e-9 if exact else error > 1e-2


@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
def test_a_sequence_ratio_is_exact_for_no_estimator(estimator):
    theta = table(0)
    anchor = table(1)
    assert relative_error(theta, theta + 0.3 * table(2), anchor, estimator, True, "sequence") > 1e-2
    assert gradient_bias(estimator, True, "sequence", False) is not None


def test_values_by_hand():
    logps = torch.tensor([[-1.0, -2.0]])
    anchor = torch.tensor([[-1.5, -1.0]])
    assert torch.allclose(kl_values(logps, anchor, "k1"), torch.tensor([[0.5, -1.0]]))
    assert torch.allclose(kl_values(logps, anchor, "k2"), torch.tensor([[0.125, 0.5]]))
    k3 = [math.exp(-0.5) - 1 + 0.5, math.exp(1.0) - 1 - 1.0]
    assert torch.allclose(kl_values(logps, anchor, "k3"), torch.tensor([k3]))


def test_sequence_ratio_is_the_geometric_mean_over_counted_tokens():
    logps = torch.tensor([[-1.0, -2.0, -9.0]])
    old = torch.tensor([[-1.2, -1.4, -1.0]])
    ratio = importance_ratio(logps, old, torch.tensor([[1, 1, 0]]), "sequence")
    assert torch.allclose(ratio, torch.tensor([[math.exp((0.2 - 0.6) / 2)]]))


CPU = {"output_dir": "run", "use_cpu": True, "bf16": False}
# log π/π_anchor of five tokens, and their k3: 0.1065, 16.09, 4.0067, 12.0000061, 145.4
LOG_RATIOS = [0.5, -3.0, 5.0, 13.0, -5.0]


def of(log_ratios, dtype=torch.float64):
    logps = torch.tensor([log_ratios], dtype=dtype).requires_grad_()
    return logps, torch.zeros_like(logps)


def gradient(penalty, logps):
    return torch.autograd.grad(penalty.sum(), logps, retain_graph=True)[0]


def close(found, expected):
    assert torch.allclose(found, torch.tensor([expected], dtype=found.dtype), atol=1e-9)


E3 = math.exp(-0.5)
E5 = math.exp(-5.0)
CLAMPED = {
    "k3": (10.0, [E3 - 0.5, 10.0, E5 + 4.0, 10.0, 10.0], [1 - E3, 0.0, 1 - E5, 0.0, 0.0]),
    "k1": (4.0, [0.5, -3.0, 4.0, 4.0, -4.0], [1.0, 1.0, 0.0, 0.0, 0.0]),  # signed, and bounded on both sides
    "k2": (4.5, [0.125, 4.5, 4.5, 4.5, 4.5], [0.5, -3.0, 0.0, 0.0, 0.0]),  # 4.5 itself is within
}


@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
def test_the_bound_by_hand(estimator):
    logps, anchor = of(LOG_RATIOS)
    clamp, values, derivatives = CLAMPED[estimator]
    penalty = kl_penalty(logps, anchor, estimator, clamp=clamp)
    close(penalty, values)
    close(gradient(penalty, logps), derivatives)
    assert beyond_clamp(logps, anchor, estimator, clamp).tolist() == [[value == 0.0 for value in derivatives]]


def test_it_acts_before_the_ratio_and_takes_the_ratio_s_gradient_too():
    logps, anchor = of(LOG_RATIOS)
    old = torch.tensor([[0.3, -2.0, 5.5, 12.0, -5.0]], dtype=torch.float64)
    ratio = importance_ratio(logps, old, torch.ones_like(old), "token")
    penalty = kl_penalty(logps, anchor, "k3", ratio, 10.0)
    k3 = [math.exp(-0.5) - 0.5, 10.0, math.exp(-5.0) + 4.0, 10.0, 10.0]
    r = [math.exp(0.2), math.exp(-1.0), math.exp(-0.5), math.exp(1.0), 1.0]
    close(penalty, [k * ratio for k, ratio in zip(k3, r, strict=True)])  # 10 r, not min(10, k3 r)
    # (k3 r)' = r log(π/π_anchor)
    close(gradient(penalty, logps), [r[0] * 0.5, 0.0, r[2] * 5.0, 0.0, 0.0])
    assert "kl_clamp=10.0" in gradient_bias("k3", True, "token", False, 10.0)


def test_a_sequence_ratio_keeps_the_other_tokens_gradient():
    logps, anchor = of([0.5, -5.0])
    old = torch.zeros_like(anchor)
    ratio = importance_ratio(logps, old, torch.ones_like(old), "sequence")  # exp of the mean, (0.5 − 5) / 2
    found = gradient(kl_penalty(logps, anchor, "k3", ratio, 10.0), logps)
    r = math.exp(-2.25)
    k3 = math.exp(-0.5) - 0.5
    close(found, [r * (1 - math.exp(-0.5)) + k3 * r / 2, k3 * r / 2])


@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
def test_without_a_ratio_it_is_torch_clamp(estimator):
    """verl's `torch.clamp(kld, min=-10, max=10)`, to the bit, in value and gradient; a high bound changes none."""
    logps, anchor = of((4 * torch.randn(500, generator=torch.Generator().manual_seed(1))).tolist(), torch.float32)
    free = kl_penalty(logps, anchor, estimator)
    ratio = torch.exp(logps - 0.1)
    pairs = [
        (kl_penalty(logps, anchor, estimator, clamp=10.0), torch.clamp(free, min=-10, max=10)),
        (kl_penalty(logps, anchor, estimator, ratio, 1e9), kl_penalty(logps, anchor, estimator, ratio)),
    ]
    for ours, theirs in pairs:
        assert torch.equal(ours, theirs)
        assert torch.equal(gradient(ours, logps), gradient(theirs, logps))
    assert (pairs[0][0].abs() == 10).any() or estimator == "k1"


def test_an_estimate_that_overflows_has_a_gradient_of_0_and_nan_stays_nan():
    logps, anchor = of([-200.0, math.nan, 0.5], torch.float32)
    ratio = importance_ratio(logps, logps.detach(), torch.ones_like(anchor), "token")
    penalty = kl_penalty(logps, anchor, "k3", ratio, 10.0)
    found = gradient(penalty, logps)
    assert penalty[0, 0] == 10.0
    assert found[0, 0] == 0.0
    assert math.isnan(penalty[0, 1])
    assert math.isnan(found[0, 1])
    assert found[0, 2] == pytest.approx(0.5)
    assert beyond_clamp(logps, anchor, "k3", 10.0).tolist() == [[True, False, False]]


ARMS = {
    "A": {"beta": 0.5, "ref_reset_every": 4},
    "B": {"beta_old": 0.5},
}


@pytest.mark.parametrize("arm, packed", slow_but([("A", "off"), ("A", "on"), ("B", "off")], ("A", "on"), ("B", "off")))
def test_a_bound_that_no_token_reaches_and_one_that_every_token_exceeds(run, largest_difference, arm, packed):
    """With the first a run is that without a bound; with the second its KL has no gradient."""
    with pytest.warns(UserWarning, match="kl_clamp=1000.0"):
        ProRLConfig(**CPU, num_iterations=2, kl_clamp=1000.0, **ARMS[arm])
    plain, *of_arm = (
        run(pack_groups=packed, **keys) for keys in ({}, *(ARMS[arm] | {"kl_clamp": k} for k in (None, 1e3, 1e-9)))
    )
    free, wide, narrow = of_arm
    assert largest_difference(free, plain) > 1e-4
    assert largest_difference(wide, free) < 2e-6
    assert largest_difference(narrow, plain) < 5e-6
    assert [row["kl_clamped"] for row in rows(wide)] == [0] * 4
    assert all("kl_clamped" not in row for row in rows(free))
    second = rows(narrow)[1]  # the record still sees the KL
    assert second["kl_old" if arm == "B" else "kl_ref"] > 1e-4
    assert 0 < second["kl_penalty"] < 1e-8
    assert second["kl_clamped"] > 10


@pytest.mark.parametrize("arm", ARMS)
def test_packed_and_padded_agree_where_a_part_is_bounded(run, largest_difference, arm):
    keys = {"kl_clamp": 0.01, "max_steps": 6, **ARMS[arm]}
    packed = run(pack_groups="on", **keys)
    padded = run(**keys)
    assert largest_difference(packed, padded) < 1e-5
    counts = [row["kl_clamped"] for row in rows(packed)]
    assert counts == [row["kl_clamped"] for row in rows(padded)]
    tokens = 8 * 6
    assert 0 < max(counts) < tokens


def test_the_record_counts_each_token_once_however_many_anchors_bound_it(make_trainer):
    trainer = make_trainer(beta=0.2, beta_old=0.2, beta_base=0.2, kl_clamp=0.005, ref_reset_every=2, max_steps=6)
    seen = []
    record = trainer.recorder.on_loss

    def micro_batch(found):
        batch = found.batch
        logps = found.logps
        anchors = [batch[name] for name in batch if name.endswith("per_token_logps")]
        k3 = [torch.expm1(a - logps) - (a - logps) for a in anchors if a.shape == logps.shape]
        assert len(k3) == 3
        seen.append(int(((torch.stack(k3) > 0.005).any(0) * batch["completion_mask"]).sum()))
        record(found)

    trainer.recorder.on_loss = micro_batch
    trainer.train()
    assert [row["kl_clamped"] for row in rows(trainer)] == seen
    assert max(seen) > 0


def with_old(trainer, change):
    """The log-probabilities under π_old of every batch are changed before the loss."""
    compute = trainer.compute_loss

    def changed(model, inputs, **others):
        if "old_per_token_logps" in inputs:
            inputs = {**inputs, "old_per_token_logps": change(inputs["old_per_token_logps"].clone())}
        return compute(model, inputs, **others)

    trainer.compute_loss = changed
    return trainer


def lost(old):
    """The policy gives the first token of a batch e^-100 of the probability that π_old gave it: its k3 overflows."""
    old[0, 0] += 100.0
    return old


def test_a_token_whose_kl_overflows_stops_a_run_only_where_it_is_not_bounded(make_trainer):
    with pytest.raises(NonFiniteError, match="kl_old"):
        with_old(make_trainer(beta_old=0.2), lost).train()
    bounded = with_old(make_trainer(beta_old=0.2, kl_clamp=10.0), lost)
    bounded.train()
    found = rows(bounded)
    assert len(found) == 4
    assert max(row["kl_clamped"] for row in found) == 1
    clamped = [row for row in found if row["kl_clamped"]]
    assert all("kl_old" not in row and math.isfinite(row["kl_penalty"]) for row in clamped)  # infinite: not measured
    with pytest.raises(NonFiniteError):  # where a log-probability is not finite, a bounded run stops too
        with_old(make_trainer(beta_old=0.2, kl_clamp=10.0), lambda old: old * math.nan).train()


@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
def test_bf16_keeps_the_bound(estimator):
    """At 8 bits of precision, too, the bounded are the bound to the bit, and without gradient."""
    logps, anchor = of([0.5, -3.0, 5.0, 13.0, -90.0], torch.bfloat16)
    penalty = kl_penalty(logps, anchor, estimator, torch.exp(logps - logps.detach()), 4.0)
    found = gradient(penalty, logps)
    beyond = beyond_clamp(logps, anchor, estimator, 4.0)
    assert penalty.dtype == torch.bfloat16
    assert penalty.isfinite().all()
    assert found.isfinite().all()
    assert (penalty[beyond].abs() == 4.0).all()
    assert not found[beyond].any()
    assert beyond.any()
    assert not beyond.all()


IN_REWARD = {"beta": 0.5, "kl_in": "reward", "advantage_estimator": "global_normalized", "num_iterations": 2}


def batches_of(trainer):
    """What the trainer trains on, generation batch by generation batch, and the task's rewards."""
    sampled = record_results(trainer, "_sample")
    trainer.train()
    return [batch for batch, _ in sampled], [outcome.rewards for _, outcome in sampled]


@pytest.mark.parametrize("anchor", ["beta", "beta_base"])
@pytest.mark.parametrize("estimator", ["global_normalized", "rloo"])
def test_the_kl_in_the_reward_by_hand(make_trainer, trained_adapter, anchor, estimator):
    keys = {**IN_REWARD, "beta": 0.0, anchor: 0.5, "advantage_estimator": estimator, "fast": True, "max_steps": 4}
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


def test_with_it_in_the_reward_the_loss_has_no_kl_term(run, largest_difference):
    """At the first batch π_old is the reference: the reward loses nothing, and two updates are those without KL."""
    keys = {"advantage_estimator": "global_normalized", "num_iterations": 2, "max_steps": 2}
    ends = []
    for more in ({}, {"beta": 0.5, "kl_in": "reward"}, {"beta": 0.5}):
        torch.manual_seed(3)
        ends.append(run(**keys, **more))
    assert largest_difference(ends[0], ends[1]) < 1e-7 < 1e-5 < largest_difference(ends[0], ends[2])


def test_a_reward_without_it_loses_nothing(make_trainer):
    trainer = make_trainer(beta=0.5)
    assert trainer.anchors.in_reward({}) is None
