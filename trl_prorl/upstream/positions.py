"""
Positions in left-padded rows. TRL passes none, and a model with learned positions then counts the padding: it scores a
shorter prompt at other positions than `generate` samples it at.
"""

from collections.abc import Callable

import torch


def with_positions(model: Callable) -> Callable:
    """Return a model's forward with positions as in `generate`."""

    def forward(attention_mask: torch.Tensor, **inputs):
        positions = (attention_mask.cumsum(dim=-1) - 1).clamp(min=0)  # padding on the left has position 0
        return model(attention_mask=attention_mask, position_ids=positions, **inputs)

    return forward
