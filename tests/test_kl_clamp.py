"""`kl_clamp`: numbers by hand, gradients by enumeration, and runs in which it does nothing, everything and a part."""

import math

import pytest
import torch
from run_record import read_rows as rows
from test_kl import COMPLETIONS, LENGTH, ROW, completion_logps, estimated_gradient, table
from test_packing_training import GroupsTogether

from trl_prorl import ProRLConfig
from trl_prorl.errors import NonFiniteError
from trl_prorl.objective.kl import beyond_clamp, gradient_bias, importance_ratio, kl_penalty


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


def test_k3_by_hand():
    logps, anchor = of(LOG_RATIOS)
    penalty = kl_penalty(logps, anchor, "k3", clamp=10.0)
    close(penalty, [math.exp(-0.5) - 0.5, 10.0, math.exp(-5.0) + 4.0, 10.0, 10.0])
    close(gradient(penalty, logps), [1 - math.exp(-0.5), 0.0, 1 - math.exp(-5.0), 0.0, 0.0])
    assert beyond_clamp(logps, anchor, "k3", 10.0).tolist() == [[False, True, False, True, True]]


def test_k1_and_k2_by_hand():
    """k1 is signed, and is bounded on both sides."""
    logps, anchor = of(LOG_RATIOS)
    k1 = kl_penalty(logps, anchor, "k1", clamp=4.0)
    close(k1, [0.5, -3.0, 4.0, 4.0, -4.0])
    close(gradient(k1, logps), [1.0, 1.0, 0.0, 0.0, 0.0])
    k2 = kl_penalty(logps, anchor, "k2", clamp=4.5)
    close(k2, [0.125, 4.5, 4.5, 4.5, 4.5])  # 4.5 itself is within, and keeps its gradient
    close(gradient(k2, logps), [0.5, -3.0, 0.0, 0.0, 0.0])


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


def test_a_sequence_ratio_keeps_the_other_tokens_gradient():
    logps, anchor = of([0.5, -5.0])
    old = torch.zeros_like(anchor)
    ratio = importance_ratio(logps, old, torch.ones_like(old), "sequence")  # exp of the mean, (0.5 − 5) / 2
    found = gradient(kl_penalty(logps, anchor, "k3", ratio, 10.0), logps)
    r, k3 = math.exp(-2.25), math.exp(-0.5) - 0.5
    close(found, [r * (1 - math.exp(-0.5)) + k3 * r / 2, k3 * r / 2])


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_without_a_ratio_it_is_torch_clamp(estimator):
    """verl's `torch.clamp(kld, min=-10, max=10)`, to the bit, in value and gradient."""
    logps, anchor = of((4 * torch.randn(500, generator=torch.Generator().manual_seed(1))).tolist(), torch.float32)
    ours = kl_penalty(logps, anchor, estimator, clamp=10.0)
    theirs = torch.clamp(kl_penalty(logps, anchor, estimator), min=-10, max=10)
    assert torch.equal(ours, theirs) and torch.equal(gradient(ours, logps), gradient(theirs, logps))
    assert (ours.abs() == 10).any() or estimator == "k1"


def test_an_estimate_that_overflows_has_a_gradient_of_0_and_nan_stays_nan():
    logps, anchor = of([-200.0, math.nan, 0.5], torch.float32)
    ratio = importance_ratio(logps, logps.detach(), torch.ones_like(anchor), "token")
    penalty = kl_penalty(logps, anchor, "k3", ratio, 10.0)
    found = gradient(penalty, logps)
    assert penalty[0, 0] == 10.0 and found[0, 0] == 0.0
    assert math.isnan(penalty[0, 1]) and math.isnan(found[0, 1])
    assert found[0, 2] == pytest.approx(0.5)
    assert beyond_clamp(logps, anchor, "k3", 10.0).tolist() == [[True, False, False]]


def clamped_gradient(theta, sampler, anchor, clamp):
    """Expected gradient by the definition: every token within the bound gives π_old · r · log(π/π_anchor) ∇log π."""
    theta = theta.clone().requires_grad_()
    weight = completion_logps(sampler).sum(-1).exp()
    policy, others = theta.log_softmax(-1), anchor.log_softmax(-1)
    old, total, left_out = sampler.log_softmax(-1), 0.0, 0
    for number, completion in enumerate(COMPLETIONS):
        for t in range(LENGTH):
            place = (ROW[completion[:t]], completion[t])
            d = (policy[place] - others[place]).item()
            if math.exp(-d) - 1 + d > clamp:
                left_out += 1
                continue
            total = total + weight[number] * math.exp(policy[place].item() - old[place].item()) * d * policy[place]
    return torch.autograd.grad(total, theta)[0], left_out


@pytest.mark.parametrize("off_policy", [0.0, 0.3])
def test_the_expected_gradient_is_that_of_the_tokens_within(off_policy):
    theta, anchor = table(0), 2 * table(1)
    sampler = theta + off_policy * table(2)
    logps, old = completion_logps(theta.requires_grad_()), completion_logps(sampler.detach())
    ratio = importance_ratio(logps, old, torch.ones_like(old), "token")
    penalty = kl_penalty(logps, completion_logps(anchor), "k3", ratio, 0.5)
    found = torch.autograd.grad((old.sum(-1).exp()[:, None] * penalty).sum(), theta)[0]
    expected, left_out = clamped_gradient(theta.detach(), sampler.detach(), anchor, 0.5)
    assert 0 < left_out < LENGTH * len(COMPLETIONS) // 2
    assert (found - expected).norm() < 1e-9 * expected.norm()
    unbounded = estimated_gradient(theta.detach(), sampler.detach(), anchor, "k3", True)
    assert (found - unbounded).norm() > 1e-2 * unbounded.norm()
    assert "kl_clamp=0.5" in gradient_bias("k3", True, "token", False, 0.5)


def test_a_bound_above_every_estimate_changes_no_bit():
    logps, anchor = of(LOG_RATIOS)
    ratio = torch.exp(logps - 0.1)
    bounded, free = kl_penalty(logps, anchor, "k3", ratio, 1e6), kl_penalty(logps, anchor, "k3", ratio)
    assert torch.equal(bounded, free) and torch.equal(gradient(bounded, logps), gradient(free, logps))


ARMS = {"A": {"beta": 0.5, "ref_reset_every": 4}, "control": {"beta": 0.5}, "B": {"beta_old": 0.5}}
ARMS |= {"base": {"beta_base": 0.5}}


@pytest.mark.parametrize("arm", ARMS)
def test_a_bound_that_no_token_reaches_trains_as_without(run, largest_difference, arm):
    with pytest.warns(UserWarning, match="beyond kl_clamp=1000.0 carry no gradient"):
        ProRLConfig(**CPU, num_iterations=2, kl_clamp=1000.0, **ARMS[arm])
    bounded, free = run(kl_clamp=1000.0, **ARMS[arm]), run(**ARMS[arm])
    assert largest_difference(bounded, free) < 2e-6
    assert [row["kl_clamped"] for row in rows(bounded)] == [0] * 4
    assert all("kl_clamped" not in row for row in rows(free))


@pytest.mark.parametrize("arm, packed", [*((arm, "off") for arm in ARMS), ("A", "on")])
def test_a_bound_that_every_token_exceeds_trains_as_plain(run, largest_difference, arm, packed):
    """Its gradient is 0, so there is no KL left; the record still sees it."""
    bounded, plain = run(kl_clamp=1e-9, pack_groups=packed, **ARMS[arm]), run(pack_groups=packed)
    assert largest_difference(bounded, plain) < 5e-6
    assert largest_difference(run(pack_groups=packed, **ARMS[arm]), plain) > 1e-4
    second = rows(bounded)[1]
    kl = second["kl_old" if arm == "B" else "kl_base" if arm == "base" else "kl_ref"]
    assert kl > 1e-4 and 0 < second["kl_penalty"] < 1e-8 and second["kl_clamped"] > 10


@pytest.mark.parametrize("arm", ARMS)
def test_packed_and_padded_agree_where_a_part_is_bounded(run, largest_difference, arm):
    keys = {"kl_clamp": 0.01, "max_steps": 6, "pack_groups": "on", **ARMS[arm]}
    packed, padded = run(**keys), run(cls=GroupsTogether, **keys)
    assert largest_difference(packed, padded) < 1e-5
    counts = [row["kl_clamped"] for row in rows(packed)]
    assert counts == [row["kl_clamped"] for row in rows(padded)]
    tokens = 8 * 6
    assert 0 < max(counts) < tokens


def test_the_record_counts_each_token_once_however_many_anchors_bound_it(make_trainer):
    trainer = make_trainer(beta=0.2, beta_old=0.2, beta_base=0.2, kl_clamp=0.005, ref_reset_every=2, max_steps=6)
    seen, record = [], trainer.recorder.micro_batch

    def micro_batch(found):
        batch, logps = found.batch, found.logps
        k3 = [
            torch.expm1(batch[name] - logps) - (batch[name] - logps)
            for name in batch
            if name.endswith("per_token_logps")
        ]
        k3 = [values for values in k3 if values.shape == logps.shape]
        assert len(k3) == 3
        seen.append(int(((torch.stack(k3) > 0.005).any(0) * batch["completion_mask"]).sum()))
        record(found)

    trainer.recorder.micro_batch = micro_batch
    trainer.train()
    assert [row["kl_clamped"] for row in rows(trainer)] == seen and max(seen) > 0


def with_old(trainer, change):
    """The log-probabilities under π_old of every batch are changed before the loss."""
    compute = trainer._compute_loss

    def changed(model, inputs):
        if "old_per_token_logps" in inputs:
            inputs = {**inputs, "old_per_token_logps": change(inputs["old_per_token_logps"].clone())}
        return compute(model, inputs)

    trainer._compute_loss = changed
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
    assert len(found) == 4 and max(row["kl_clamped"] for row in found) == 1
    clamped = [row for row in found if row["kl_clamped"]]
    assert all("kl_old" not in row and math.isfinite(row["kl_penalty"]) for row in clamped)  # infinite: not measured
    with pytest.raises(NonFiniteError):  # where a log-probability is not finite, a bounded run stops too
        with_old(make_trainer(beta_old=0.2, kl_clamp=10.0), lambda old: old * math.nan).train()


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_bf16_keeps_the_bound(estimator):
    """At 8 bits of precision, too, the bounded are the bound to the bit, and without gradient."""
    logps, anchor = of([0.5, -3.0, 5.0, 13.0, -90.0], torch.bfloat16)
    penalty = kl_penalty(logps, anchor, estimator, torch.exp(logps - logps.detach()), 4.0)
    found, beyond = gradient(penalty, logps), beyond_clamp(logps, anchor, estimator, 4.0)
    assert penalty.dtype == torch.bfloat16 and penalty.isfinite().all() and found.isfinite().all()
    assert (penalty[beyond].abs() == 4.0).all() and not found[beyond].any() and beyond.any() and not beyond.all()


def test_a_log_probability_that_is_not_finite_stops_a_bounded_run_too(make_trainer):
    trainer = make_trainer(beta_old=0.2, kl_clamp=10.0)
    compute = trainer._compute_loss

    def broken(model, inputs):
        if "old_per_token_logps" in inputs:
            inputs = {**inputs, "old_per_token_logps": inputs["old_per_token_logps"] * math.nan}
        return compute(model, inputs)

    trainer._compute_loss = broken
    with pytest.raises(NonFiniteError):
        trainer.train()
