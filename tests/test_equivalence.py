"""The design's equivalence facts, on real training steps, with TRL as the control."""

import pytest
import torch
from run_record import read_rows as rows
from run_record import without_times
from tiny_run import MovedEveryGeneration
from trl import GRPOTrainer

from trl_prorl.supported import LOSS_TYPES


@pytest.mark.gpu
@pytest.mark.parametrize("lora", [True, False])
@pytest.mark.parametrize("beta", [0.0, 0.2])
def test_all_options_off_is_trl_bit_for_bit(run, weights, lora, beta):
    ours = run(lora=lora, beta=beta)
    theirs = run(GRPOTrainer, lora=lora, beta=beta)
    a = weights(ours)
    b = weights(theirs)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    for mine, entry in zip(ours.state.log_history, without_times(theirs.state.log_history), strict=True):
        assert {k: mine[k] for k in entry} == entry


# The rows of `LOSS_TYPES` that have a normaliser and a clip as another one before them are slow.
LIKE = {name: list(LOSS_TYPES.values()).index(loss) for name, loss in LOSS_TYPES.items()}
LOSSES = [
    pytest.param(loss_type, "token", True, marks=() if first == place else pytest.mark.slow)
    for place, (loss_type, first) in enumerate(LIKE.items())
]
LOSSES += [("grpo", "sequence", True), ("grpo", "token", False)]
LOSSES += [pytest.param("cispo", "token", False, marks=pytest.mark.slow)]
LOSSES += [pytest.param(loss_type, "sequence", False, marks=pytest.mark.slow) for loss_type in LOSS_TYPES]


@pytest.mark.parametrize("entry", [{"num_beams": 2}, {"temperature": 0.3}, {"do_sample": False}], ids=str)
def test_entries_of_generation_kwargs_are_trls_with_our_keys_off(run, largest_difference, entry):
    keys = {"generation_kwargs": entry, "num_iterations": 1, "max_steps": 2}
    assert largest_difference(run(**keys), run(GRPOTrainer, **keys)) == 0.0


@pytest.mark.parametrize("loss_type, level, corrected", LOSSES)
def test_b_is_trl_with_the_reference_moved_before_every_generation(
    run, trained_adapter, largest_difference, loss_type, level, corrected
):
    """TRL's own loss, KL included, is the control for the term that we add to it: every normaliser, both ratios."""
    shared = {
        "loss_type": loss_type,
        "importance_sampling_level": level,
        "use_bias_correction_kl": corrected,
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 4,
        "per_device_train_batch_size": 2,
        "lora": False,  # no `peft_config`: the models are wrapped already
        "max_steps": 6,
    }
    b = run(model=trained_adapter(), beta_old=0.5, **shared)
    control = run(MovedEveryGeneration, model=trained_adapter(), beta=0.5, **shared)
    assert largest_difference(b, control) < 2e-6
    assert max(entry["kl"] for entry in control.state.log_history if "kl" in entry) > 1e-3  # there is a penalty


@pytest.mark.gpu
def test_a_reset_at_every_boundary_is_b_plus_a_reference_forward(run, largest_difference):
    a = run(beta=0.5, ref_reset_every=1, max_steps=4)
    b = run(beta_old=0.5, max_steps=4)
    assert largest_difference(a, b) < 2e-6
    of_a = rows(a)
    of_b = rows(b)
    assert [r["kl_ref"] for r in of_a] == pytest.approx([r["kl_old"] for r in of_b], abs=1e-6)
    assert [r["kl_penalty"] for r in of_a] == pytest.approx([r["kl_penalty"] for r in of_b], abs=1e-6)
    # TRL's own metric of A, and what we log in its place for B.
    kl_a = [entry["kl"] for entry in a.state.log_history if "kl" in entry]
    kl_b = [entry["kl"] for entry in b.state.log_history if "kl" in entry]
    assert kl_a == pytest.approx(kl_b, abs=1e-6)
    assert max(kl_a) > 1e-4
    assert [r["ref_forward_calls"] for r in of_a] == [1, 0] * 2
    assert [r["ref_forward_calls"] for r in of_b] == [0] * 4


def test_a_at_every_boundary_is_b_for_every_estimator(run, largest_difference):
    k3 = run(beta_old=0.5, max_steps=4)
    for estimator, corrected in (("k1", True), ("k2", False), ("k2", True)):
        shared = {"kl_estimator": estimator, "use_bias_correction_kl": corrected, "max_steps": 4}
        a = run(beta=0.5, ref_reset_every=1, **shared)
        b = run(beta_old=0.5, **shared)
        assert largest_difference(a, b) < 2e-6
        assert largest_difference(b, k3) > 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("lora", [True, False])
@pytest.mark.parametrize("resets", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_ref_compute_changes_the_cost_and_not_the_numbers(run, largest_difference, lora, resets):
    shared = {"lora": lora, "beta": 0.5, "ref_reset_every": resets, "max_steps": 6, "num_iterations": 3}
    cached = run(**shared)
    naive = run(ref_compute="naive_epoch", **shared)
    assert largest_difference(cached, naive) < 2e-6
    assert [r["kl_ref"] for r in rows(cached)] == pytest.approx([r["kl_ref"] for r in rows(naive)], abs=1e-6)
    assert [r["ref_forward_calls"] for r in rows(cached)] == [1, 0, 0] * 2
    assert [r["ref_forward_calls"] for r in rows(naive)] == [1] * 6


@pytest.mark.gpu
@pytest.mark.parametrize("lora", [True, False])
def test_c_with_keep_and_with_soft_one_are_a(run, largest_difference, lora):
    shared = {"lora": lora, "beta": 0.5, "ref_reset_every": 2, "max_steps": 4}
    a = run(**shared)
    keep = run(optimizer_reset="keep", **shared)
    soft = run(optimizer_reset="soft", optimizer_reset_alpha=1.0, **shared)
    hard = run(optimizer_reset="hard", **shared)
    assert largest_difference(a, keep) == 0.0
    assert largest_difference(a, soft) == 0.0
    assert largest_difference(a, hard) > 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("lora", [True, False])
def test_kl_ref_is_zero_after_a_reset_until_the_next_update(run, lora):
    trainer = run(lora=lora, beta=0.1, ref_reset_every=4, max_steps=10)
    kl = {row["step"]: row["kl_ref"] for row in rows(trainer)}
    assert [event["step_applied"] for event in rows(trainer, "events.jsonl")] == [4, 8]
    for step in (1, 5, 9):
        assert kl[step] == pytest.approx(0.0, abs=1e-6)
    for step in (2, 3, 4, 6, 7, 8, 10):
        assert kl[step] > 1e-5
    # The diagnostic compares the reference with the policy that sampled, whatever has been updated since.
    k2 = {row["step"]: row["k2_ref_over_old"] for row in rows(trainer)}
    assert max(k2[step] for step in (1, 2, 5, 6, 9, 10)) == pytest.approx(0.0, abs=1e-6)
    assert min(k2[step] for step in (3, 4, 7, 8)) > 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("lora", [True, False])
def test_first_pass_log_probabilities_are_those_of_a_forward_of_their_own(run, largest_difference, lora):
    shared = {
        "lora": lora,
        "beta_old": 0.5,
        "max_steps": 6,
        "gradient_accumulation_steps": 2,
        "per_device_train_batch_size": 4,
        "num_iterations": 3,
    }
    reused = run(reuse_old_logps=True, **shared)
    forward = run(**shared)
    assert largest_difference(reused, forward) < 2e-6
    assert [row["old_forward_calls"] for row in rows(forward)] == [2, 0, 0] * 2
    assert [row["old_forward_calls"] for row in rows(reused)] == [0] * 6
    assert [row["kl_old"] for row in rows(reused)] == pytest.approx([row["kl_old"] for row in rows(forward)], abs=1e-6)
