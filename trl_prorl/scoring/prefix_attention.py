"""
Attention within one row of tokens that holds many sequences, some of which continue others.

A sequence is a stretch of the row; its prefix is another stretch, which it sees as a whole. The prefix of a completion
is its prompt, and a prompt has no prefix:

    row         a b c | d x1 x2 | d y1 y2 y3        prompt a b c, completions d x1 x2 and d y1 y2 y3
    sees        causal  a b c,    a b c,
                        causal    causal

Under a mask over the whole row, every token would pay for all others. Here queries are computed in blocks: the first
tokens of all sequences together, then the next tokens of the longer sequences, and so on. The keys of a block end
where its queries end. Only the padding of prefixes to the longest one, the padding of a sequence's last block, and
half of every block on the diagonal are computed in vain.
"""

from itertools import pairwise
from typing import NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward


# The queries of a sequence that are computed together. On a CPU 128 to 512 differ by a tenth: smaller blocks compute
# less in vain, larger blocks need fewer calls.
QUERY_BLOCK = 128


class Layout(NamedTuple):
    """
    The places of the sequences in a row of T tokens, in the form that an attention layer needs.

    Attributes:
        keys (`torch.LongTensor` of shape `(S, W)`): The places of every sequence's prefix, ending at the same column,
            and of its own tokens, padded with 0; the longest sequence first.
        masks (`list[torch.BoolTensor]` of shape `(S', 1, Q, K)`): For each block of queries, the keys that they see.
            The queries are the last Q of the first K keys of the first S' sequences.
        order (`torch.LongTensor` of shape `(T,)`):
            For each place of the row, the position of its result among all queries of all blocks.
    """

    keys: torch.Tensor
    masks: list[torch.Tensor]
    order: torch.Tensor


def layout(sequences: list[tuple[int, int, int, int]], device: torch.device | str = "cpu") -> Layout:
    """
    The layout of a row in which every place belongs to exactly one sequence. Of each: the first place and the length
    of the prefix, the first place and the length of the sequence itself.
    """
    sequences = torch.tensor(sequences)
    sequences = sequences[sequences[:, 3].argsort(descending=True, stable=True)]
    prefix, prefix_length, start, length = sequences.T.unsqueeze(-1)
    before, longest = int(prefix_length.max()), int(length.max())

    column = torch.arange(-before, longest)  # 0 is the first of a sequence's own tokens
    real = (column >= -prefix_length) & (column < length)
    keys = torch.where(column < 0, prefix + prefix_length + column, start + column).where(real, 0)
    masks, places, counts = [], [], []
    ends = {*range(QUERY_BLOCK, longest, QUERY_BLOCK), longest}
    ends.add(int(length[prefix_length > 0].max()) if before else longest)  # prompts may be longer than completions
    for first, end in pairwise([0, *sorted(ends)]):
        rows = int((length > first).sum())
        seen = slice(0, before + end)
        queries = slice(before + first, seen.stop)
        masks.append(real[:rows, None, None, seen] & (column[seen] <= column[queries, None]))
        places.append(keys[:rows, queries].flatten())
        counts.append(real[:rows, queries].flatten())
    places, counts = torch.cat(places), torch.cat(counts)
    order = torch.empty(int(length.sum()), dtype=torch.long)
    order[places[counts]] = torch.arange(len(places))[counts]
    return Layout(keys.to(device), [mask.to(device) for mask in masks], order.to(device))


def prefix_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layout: Layout,
    dropout: float = 0.0,
    scale: float | None = None,
) -> torch.Tensor:
    """
    The result of scaled dot-product attention under the mask that `layout` describes.

    Args:
        query (`torch.Tensor` of shape `(1, H, T, D)`): Queries of one row.
        key (`torch.Tensor` of shape `(1, H', T, D)`): Keys; H' divides H (grouped-query attention).
        value (`torch.Tensor` of shape `(1, H', T, D)`): Values.
        layout ([`Layout`]): The layout of a row of T tokens, on the device of `query`.
        dropout (`float`, *optional*, defaults to `0.0`): Probability with which a weight is dropped.
        scale (`float`, *optional*): Factor of the scores, by default `D ** -0.5`.

    Returns `torch.Tensor` of shape `(1, T, H, D)`.
    """
    by_products = query.device.type == "cpu" and query.dtype is torch.bfloat16 and not dropout
    keys, values = (taken(each, layout.keys) for each in (key, value))
    groups = query.shape[1] // key.shape[1]
    if not by_products:
        keys, values = repeat_kv(keys, groups), repeat_kv(values, groups)
    results = []
    for mask in layout.masks:
        rows, _, queries, seen = mask.shape
        states = taken(query, layout.keys[:rows, seen - queries : seen])
        visible = keys[:rows, :, :seen], values[:rows, :, :seen]
        if by_products:
            result = BackwardByProducts.apply(
                states.reshape(rows, -1, groups * queries, states.shape[-1]),
                *visible,
                torch.zeros(mask.shape, dtype=query.dtype).masked_fill_(~mask, -torch.inf).repeat(1, 1, groups, 1),
                scale or states.shape[-1] ** -0.5,
            ).view(states.shape)
        else:
            result = scaled_dot_product_attention(states, *visible, attn_mask=mask, dropout_p=dropout, scale=scale)
        results.append(result.transpose(1, 2).flatten(0, 1))
    return torch.cat(results).index_select(0, layout.order).unsqueeze(0)


class BackwardByProducts(torch.autograd.Function):
    """
    Attention in bf16 on a CPU, with torch's kernel forward and matrix products backward, where torch's kernel takes
    three to six times as long. Scores and their gradients are in fp32, as in that kernel.

    Queries `(S, H', R, D)`, all those of one head of keys together; keys and values `(S, H', K, D)`; a mask to add
    `(S, 1, R, K)`; the factor of the scores.
    """

    @staticmethod
    def forward(ctx, query, key, value, mask, scale):
        attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        result, _ = attend(query, key, value, attn_mask=mask, scale=scale)
        ctx.save_for_backward(query, key, value, mask, result)
        ctx.scale = scale
        return result

    @staticmethod
    def backward(ctx, gradient):
        query, key, value, mask, result = ctx.saved_tensors
        scores = (query.float() * ctx.scale) @ key.float().transpose(-1, -2)
        weights = scores.add_(mask).softmax(dim=-1)
        of_value = weights.to(value.dtype).transpose(-1, -2) @ gradient
        mean = (gradient.float() * result).sum(dim=-1, keepdim=True)
        of_scores = (gradient @ value.transpose(-1, -2)).float().sub_(mean).mul_(weights).mul_(ctx.scale)
        of_scores = of_scores.to(query.dtype)
        return of_scores @ key, of_scores.transpose(-1, -2) @ query, of_value, None, None


def taken(states: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The states `(1, H, T, D)` of a row at `places` `(S, W)`, as `(S, H, W, D)`."""
    return states[0].transpose(0, 1).index_select(0, places.flatten()).unflatten(0, places.shape).transpose(1, 2)


def sdpa_or_prefix_attention(
    module, query, key, value, attention_mask, dropout=0.0, scaling=None, prefix_layout=None, **kwargs
):
    """
    An attention function for transformers: that of `prefix_layout` if the model was called with one, else `sdpa`.
    """
    if prefix_layout is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    other = [name for name in ("softcap", "position_bias") if kwargs.get(name) is not None]
    if other:
        raise ValueError(f'Attention with {" and ".join(other)} cannot be packed: set pack_groups: "off".')
    return prefix_attention(query, key, value, prefix_layout, dropout, scaling), None


def register() -> None:
    """
    Let models whose attention is `"sdpa"` accept `prefix_layout`. The name stays registered, because transformers
    reads it in many places, and so does a backward pass that recomputes a forward.
    """
    AttentionInterface.register("sdpa", sdpa_or_prefix_attention)
