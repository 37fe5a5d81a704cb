"""A candidate: torch's FlexAttention with a block mask, one kernel for the whole row."""

from typing import NamedTuple

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention


_compiled: dict[str, object] = {}  # compiled when they are first used: flex attention is a kernel only then


class FlexLayout(NamedTuple):
    """
    Attributes:
        mask (`BlockMask`): Who sees whom in a row of T tokens.
    """

    mask: BlockMask

    def attend(self, query, key, value, dropout=0.0, scale=None) -> torch.Tensor:
        """Shapes as [`~trl_prorl.scoring.prefix_attention.prefix_attention`]."""
        if dropout:
            raise ValueError("FlexAttention has no dropout.")
        attend = _kernel("attend", flex_attention) if query.is_cuda else flex_attention
        grouped = query.shape[1] != key.shape[1]
        return attend(query, key, value, block_mask=self.mask, scale=scale, enable_gqa=grouped).transpose(1, 2)


def flex(sequences: list[tuple[int, int, int, int]], device: torch.device | str = "cpu") -> FlexLayout:
    """The layout of a row: arguments as [`~trl_prorl.scoring.prefix_attention.layout`]."""
    size = sum(length for *_, length in sequences)
    first, prefix, end = (torch.empty(size, dtype=torch.long) for _ in range(3))
    for place, length, start, own in sequences:
        for values, value in ((first, start), (prefix, place), (end, place + length)):
            values[start : start + own] = value
    first, prefix, end = (values.to(device) for values in (first, prefix, end))

    def sees(batch, head, query, key):
        own = (key >= first[query]) & (key <= query)
        return own | ((key >= prefix[query]) & (key < end[query]))

    make = _kernel("mask", create_block_mask) if str(device).startswith("cuda") else create_block_mask
    return FlexLayout(make(sees, None, None, size, size, device=device))


def _kernel(name: str, function):
    if name not in _compiled:
        # Every micro-batch has another length: without `dynamic` each would be compiled anew.
        _compiled[name] = torch.compile(function, dynamic=True)
    return _compiled[name]
