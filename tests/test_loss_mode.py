"""The ratio in the policy gradient, by hand."""

import pytest
import torch

from trl_prorl import ProRLConfig


LOGPS = torch.tensor([[-1.0, -0.5, -2.0], [-0.7, -0.2, -0.1]])
OLD = torch.tensor([[-1.5, -0.5, -1.0], [-0.7, -1.2, -0.1]])
ADVANTAGES = torch.tensor([1.0, -2.0])
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])


def gradient(trainer):
    """∂loss/∂logp of fixed log-probabilities."""
    logps = LOGPS.clone().requires_grad_()
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    scored = lambda model, **others: (logps, torch.zeros_like(logps), None)  # noqa: E731
    trainer.scorer._packed, trainer.scorer.packs = lambda model, *args, **kwargs: scored(model), True
    inputs = {
        "prompt_ids": torch.ones(2, 2, dtype=torch.long),
        "prompt_mask": torch.ones(2, 2, dtype=torch.long),
        "completion_ids": torch.ones(2, 3, dtype=torch.long),
        "completion_mask": MASK,
        "advantages": ADVANTAGES,
        "old_per_token_logps": OLD,
        "num_items_in_batch": torch.tensor(5),
    }
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


def test_losses_without_a_clipped_ratio_refuse_it():
    with pytest.raises(ValueError, match="loss_type='cispo' has none"):
        ProRLConfig(loss_mode="unclipped", loss_type="cispo", use_cpu=True, bf16=False)


@pytest.mark.parametrize("mode", ["no_ratio", "unclipped"])
def test_a_clip_of_trl_s_beside_a_ratio_without_one_is_refused(mode):
    with pytest.raises(ValueError, match=f"loss_mode='{mode}' leaves no clip.*delta=2.0.*loss_mode: clipped"):
        ProRLConfig(loss_mode=mode, delta=2.0, use_cpu=True, bf16=False)
    ProRLConfig(loss_mode="clipped", delta=2.0, use_cpu=True, bf16=False)
