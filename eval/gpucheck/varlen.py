"""
A candidate: kernels for sequences of different lengths. A sequence's keys are its prefix and then its own tokens,
laid end to end, so that the causal mask of such a kernel, which is aligned to the last key, is the one that is wanted.
TRL's AsyncGRPO packs trees in this way (`trl/experimental/async_grpo/packing.py`).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention


class VarlenLayout(NamedTuple):
    """
    Attributes:
        kernel (`Callable`):
            From queries `(T, H, D)`, keys and values `(K, H', D)`, both kinds of ends, both greatest lengths and the
            scale to `(T, H, D)`.
        keys (`torch.LongTensor` of shape `(K,)`):
            The places of all sequences' keys, one sequence after another, in the order of the row.
        query_ends, key_ends (`torch.IntTensor` of shape `(S + 1,)`):
            Where sequences begin among the queries, and among the keys; and their ends.
        longest_query, longest_key (`int`):
            Of a sequence.
    """

    kernel: Callable
    keys: torch.Tensor
    query_ends: torch.Tensor
    key_ends: torch.Tensor
    longest_query: int
    longest_key: int

    def attend(self, query, key, value, dropout=0.0, scale=None) -> torch.Tensor:
        """Shapes as [`~trl_prorl.scoring.prefix_attention.prefix_attention`]."""
        if dropout:
            raise ValueError("This kernel is called without dropout.")
        query, key, value = (states[0].transpose(0, 1).contiguous() for states in (query, key, value))
        key, value = key.index_select(0, self.keys), value.index_select(0, self.keys)
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        return self.kernel(
            query, key, value, self.query_ends, self.key_ends, self.longest_query, self.longest_key, scale
        ).unsqueeze(0)


def varlen(
    sequences: list[tuple[int, int, int, int]], device: torch.device | str = "cpu", kernel: Callable | None = None
) -> VarlenLayout:
    """The layout of a row: arguments as [`~trl_prorl.scoring.prefix_attention.layout`], and a kernel."""
    ordered = sorted((one for one in sequences if one[3]), key=lambda one: one[2])
    keys = torch.cat(
        [torch.cat([torch.arange(p, p + n), torch.arange(start, start + own)]) for p, n, start, own in ordered]
    )
    queries = torch.tensor([0, *(own for *_, own in ordered)])
    seen = torch.tensor([0, *(prefix + own for _, prefix, _, own in ordered)])
    return VarlenLayout(
        kernel or loop,
        keys.to(device),
        queries.cumsum(0).int().to(device),
        seen.cumsum(0).int().to(device),
        int(queries.max()),
        int(seen.max()),
    )


def loop(query, key, value, query_ends, key_ends, longest_query, longest_key, scale) -> torch.Tensor:
    """What such a kernel computes, sequence by sequence: on every device, and slowly."""
    results = []
    ends = zip(query_ends.tolist(), query_ends[1:].tolist(), key_ends.tolist(), key_ends[1:].tolist(), strict=False)
    for first, last, first_key, last_key in ends:
        own, seen = last - first, last_key - first_key
        mask = torch.ones(own, seen, dtype=torch.bool, device=query.device).tril(seen - own)
        states = (query[first:last], key[first_key:last_key], value[first_key:last_key])
        states = (each.transpose(0, 1).unsqueeze(0) for each in states)
        result = scaled_dot_product_attention(*states, attn_mask=mask, scale=scale, enable_gqa=True)
        results.append(result[0].transpose(0, 1))
    return torch.cat(results)


def of_torch(query, key, value, query_ends, key_ends, longest_query, longest_key, scale) -> torch.Tensor:
    """torch's own, which is FlashAttention."""
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn(
        query,
        key,
        value,
        query_ends,
        key_ends,
        longest_query,
        longest_key,
        scale=scale,
        window_size=(-1, 0),  # causal
        enable_gqa=True,
    )


def of_flash_attn(query, key, value, query_ends, key_ends, longest_query, longest_key, scale, module) -> torch.Tensor:
    """FlashAttention's, of the package `flash_attn` (2) or `flash_attn_interface` (3)."""
    import importlib

    function = importlib.import_module(module).flash_attn_varlen_func
    found = function(
        query, key, value, query_ends, key_ends, longest_query, longest_key, softmax_scale=scale, causal=True
    )
    return found[0] if isinstance(found, tuple) else found


TORCH_VARLEN = partial(varlen, kernel=of_torch)
FLASH_2 = partial(varlen, kernel=partial(of_flash_attn, module="flash_attn"))
FLASH_3 = partial(varlen, kernel=partial(of_flash_attn, module="flash_attn_interface"))
