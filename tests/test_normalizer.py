"""Token weights where there is nothing to weigh; against TRL's own normalisers: test_equivalence.py."""

import pytest
import torch

from trl_prorl.objective.aggregation import token_weights


def test_a_row_without_tokens_weighs_nothing_and_breaks_nothing():
    mask = torch.tensor([[0, 0], [1, 1]])
    for loss_type in ("grpo", "bnpo", "luspo"):
        weights = token_weights(mask, loss_type)
        assert weights[0].eq(0).all() and weights.isfinite().all()


def test_unknown_loss_is_refused():
    with pytest.raises(ValueError, match="loss_type='ppo'"):
        token_weights(torch.ones(1, 2), "ppo")
