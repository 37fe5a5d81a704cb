"""The ratio in the policy gradient, by hand."""

import pytest
import torch

from trl_prorl import ProRLConfig


LOGPS = torch.tensor([[-1.0, -0.5, -2.0], [-0.7, -0.2, -0.1]])
OLD = torch.tensor([[-1.5, -0.5, -1.0], [-0.7, -1.2, -0.1]])
ADVANTAGES = torch.tensor([1.0, -2.0])
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])


def gradient(trainer, **others):
    """∂loss/∂logp of fixed log-probabilities."""
    logps = LOGPS.clone().requires_grad_()
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    scored = lambda model, **others: (logps, torch.zeros_like(logps), None)  # noqa: E731
    trainer.scorer._packed, trainer.scorer.packs = lambda model, *args, **kwargs: scored(model), True
    inputs = {"prompt_ids": torch.ones(2, 2, dtype=torch.long), "prompt_mask": torch.ones(2, 2, dtype=torch.long)}
    inputs |= {"completion_ids": torch.ones(2, 3, dtype=torch.long), "completion_mask": MASK, "advantages": ADVANTAGES}
    inputs |= {"old_per_token_logps": OLD, "num_items_in_batch": torch.tensor(5), **others}
    (result,) = torch.autograd.grad(trainer._compute_loss(trainer.model, inputs), logps)
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
    keys = {"loss_mode": mode, "loss_type": "grpo", "per_device_train_batch_size": 4, "epsilon_high": 0.9}
    trainer = make_trainer(off_policy_mask_threshold=threshold, **keys)
    others = {} if sampler is None else {"sampling_per_token_logps": sampler}
    ratio = torch.ones_like(LOGPS) if mode == "no_ratio" else (LOGPS - FARTHER).exp()
    if mode in (None, "clipped"):
        ratio[1, 0] = 0.0  # min(r A, clip(r) A): a ratio below 0.8 stops a negative advantage
    expected = by_hand(ratio) * torch.tensor([[1.0], [float(kept)]])
    assert torch.allclose(gradient(trainer, old_per_token_logps=FARTHER, **others), expected, atol=1e-6)


def test_the_mask_changes_stale_updates_without_a_ratio(run, largest_difference):
    keys = {"loss_mode": "no_ratio", "num_iterations": 3, "learning_rate": 2e-2, "max_steps": 3}
    assert largest_difference(run(**keys), run(off_policy_mask_threshold=1e-4, **keys)) > 1e-3


def test_a_penalty_keeps_its_own_ratio(make_trainer):
    """k3 to π_old, corrected by the ratio: its gradient is ratio · log-ratio, whatever the policy gradient's ratio."""
    trainer = make_trainer(loss_mode="no_ratio", loss_type="grpo", beta_old=0.1, per_device_train_batch_size=4)
    penalty = 0.1 * RATIO * (LOGPS - OLD)
    expected = by_hand(EXPECTED["no_ratio"]) + penalty * MASK / MASK.sum(dim=1, keepdim=True) / 2
    assert torch.allclose(gradient(trainer), expected, atol=1e-6)


def test_fresh_samples_know_no_difference(run, largest_difference):
    keys = {"num_iterations": 1, "max_steps": 4, "learning_rate": 1e-3}
    first = run(**keys)
    for mode in ("no_ratio", "unclipped", "clipped"):
        assert largest_difference(first, run(loss_mode=mode, **keys)) == 0.0
    stale = {**keys, "num_iterations": 3, "learning_rate": 2e-2}
    assert largest_difference(run(loss_mode="clipped", **stale), run(**stale)) == 0.0
    assert largest_difference(run(loss_mode="no_ratio", **stale), run(loss_mode="unclipped", **stale)) > 1e-4


@pytest.mark.parametrize("mode", ["no_ratio", "unclipped"])
def test_a_clip_of_trl_s_beside_a_ratio_without_one_is_refused(mode):
    with pytest.raises(ValueError, match=f"loss_mode='{mode}' leaves no clip.*delta=2.0.*loss_mode: clipped"):
        ProRLConfig(loss_mode=mode, delta=2.0, use_cpu=True, bf16=False)
    ProRLConfig(loss_mode="clipped", delta=2.0, use_cpu=True, bf16=False)


@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
def test_the_logged_policy_loss_has_the_penalty_in_it(run, moved_every_generation, trained_adapter, loss_type):
    """Beside an entropy bonus, too, B is TRL with a KL to a reference that moves before every generation."""
    keys = {"lora": False, "loss_type": loss_type, "entropy_coef": 0.01, "max_steps": 4, "learning_rate": 2e-2}
    keys |= {"gradient_accumulation_steps": 2, "steps_per_generation": 4, "per_device_train_batch_size": 4}
    b = run(model=trained_adapter(), beta_old=2.0, **keys)
    control = run(moved_every_generation, model=trained_adapter(), beta=2.0, **keys)
    ours, theirs = (
        [entry["policy_loss"] for entry in one.state.log_history if "policy_loss" in entry] for one in (b, control)
    )
    assert ours == pytest.approx(theirs, abs=1e-5) and len(ours) == 4
    without = [entry["kl_old"] for entry in b.state.log_history if "kl_old" in entry]
    assert max(without) > 1e-3  # so that the penalty is no rounding
