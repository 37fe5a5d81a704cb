"""Token weights by hand; against TRL's own normalisers in test_equivalence."""

import pytest
import torch

from trl_prorl.objective.aggregation import token_weights


MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])


@pytest.mark.parametrize(
    "loss_type, keys, expected",
    [
        ("grpo", {}, [[1 / 8, 1 / 8, 0], [1 / 4, 0, 0]]),
        ("sapo", {}, [[1 / 8, 1 / 8, 0], [1 / 4, 0, 0]]),
        ("bnpo", {}, [[1 / 6, 1 / 6, 0], [1 / 6, 0, 0]]),
        ("dr_grpo", {"max_completion_length": 5}, [[1 / 20, 1 / 20, 0], [1 / 20, 0, 0]]),
        ("dapo", {"items_per_window": 12.0}, [[1 / 12, 1 / 12, 0], [1 / 12, 0, 0]]),
        ("luspo", {}, [[1 / 4, 1 / 4, 0], [1 / 4, 0, 0]]),
    ],
)
def test_weights_by_hand_with_two_accumulation_steps(loss_type, keys, expected):
    weights = token_weights(MASK, loss_type, accumulation_steps=2, **keys)
    assert torch.allclose(weights, torch.tensor(expected, dtype=torch.float32))


def test_a_row_without_tokens_weighs_nothing_and_breaks_nothing():
    mask = torch.tensor([[0, 0], [1, 1]])
    for loss_type in ("grpo", "bnpo", "luspo"):
        weights = token_weights(mask, loss_type)
        assert weights[0].eq(0).all() and weights.isfinite().all()


def test_unknown_loss_is_refused():
    with pytest.raises(ValueError, match="loss_type='ppo'"):
        token_weights(MASK, "ppo")
