"""
Attention within one row of tokens with many sequences, some of which continue others.

A completion's prefix is its prompt, fully visible to it; a prompt has no prefix:

    row         a b c | d x1 x2 | d y1 y2 y3        prompt a b c, completions d x1 x2 and d y1 y2 y3
    sees        causal  a b c,    a b c,
                        causal    causal

Queries are computed in blocks: the first tokens of all sequences, then the next tokens of the longer ones, and so on.

Layers with a state (Gated DeltaNet, Mamba, short convolutions) compute a prompt once, by their own `forward`, with
[`States`] in place of transformers' cache, so gradients flow through it. Completions continue from copies of the
state, in the same blocks:

    call 1      a b c                               leaves a state
    call 2      d y1 y2 y3                          each continues from a copy of it
                d x1 x2 .
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from itertools import pairwise
from typing import NamedTuple

import torch
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward


# Of each sequence: first place and length of its prefix, then of itself.
Sequences = list[tuple[int, int, int, int]]

# Queries of a sequence in one block. On a CPU 128 to 512 differ by 10 %.
QUERY_BLOCK = 128
# Mask stride and offset of torch's memory-efficient GPU kernel; other strides are copied in every layer.
ALIGNMENT = 8
# Keys in a mask for each query, above which a block has only sequences with equally long prefixes: these share a mask,
# but there are more blocks.
MANY_KEYS = 1024


class Block(NamedTuple):
    """
    Queries of some sequences: their next Q tokens.

    Attributes:
        rows (`slice`): The S' sequences, of [`Layout.keys`].
        seen (`slice`): The K columns that they see, of which the last Q are the queries.
        size (`int`): Q.
        mask (`torch.BoolTensor` of shape `(S', 1, Q, K)`, *optional*):
            Visible keys; `None`: each query sees the columns up to its own.
    """

    rows: slice
    seen: slice
    size: int
    mask: torch.Tensor | None

    @property
    def sequences(self) -> int:
        return self.rows.stop - self.rows.start

    @property
    def keys(self) -> int:
        return self.seen.stop - self.seen.start


class Layout(NamedTuple):
    """
    The sequences of a row of T tokens, as an attention layer needs them.

    Attributes:
        keys (`torch.LongTensor` of shape `(S, W)`): Places of every sequence's prefix, right-aligned, and of its own
            tokens.
        blocks (`list[Block]`): All queries.
        queries (`torch.LongTensor` of shape `(N,)`): Places of the queries of all blocks, padding included.
        order (`torch.LongTensor` of shape `(T,)`): Position of each place among these queries.
        sequences (`Sequences`): As given to [`layout`], longest first.
        kept (`dict`): Places that layers derive from it, for every model.
        added (`dict`): Additive masks. They are large: only for one forward's graph.
    """

    keys: torch.Tensor
    blocks: list[Block]
    queries: torch.Tensor
    order: torch.Tensor
    sequences: Sequences
    kept: dict
    added: dict


def to_add(layout: Layout, block: Block, dtype: torch.dtype, groups: int, window: int | None = None) -> torch.Tensor:
    """
    Return a block's additive mask `(S', 1, Q·G, K)`, or one `(1, 1, Q·G, K)` for all its sequences, for G heads that
    share keys (`groups`). A query sees at most `window` keys, including itself.
    """
    if block.mask is None:
        return _shared_to_add(layout, block, dtype, groups, window)
    name = (block.rows.start, block.seen.stop, dtype, groups, window)
    if name not in layout.added:
        mask = block.mask
        rows, _, queries, seen = mask.shape
        if window is not None:
            # Columns of a sequence and its prefix count positions without a gap.
            is_near = torch.ones(queries, seen, dtype=torch.bool, device=mask.device).triu(seen - queries - window + 1)
            mask = mask & is_near
        width = seen + -seen % ALIGNMENT
        added = torch.zeros((rows, 1, queries, groups, width), dtype=dtype, device=mask.device)
        added[..., :seen].masked_fill_(~mask[..., None, :], -torch.inf)
        layout.added[name] = added.view(rows, 1, queries * groups, width)[..., :seen]
    return layout.added[name]


def _shared_to_add(layout: Layout, block: Block, dtype: torch.dtype, groups: int, window: int | None) -> torch.Tensor:
    """
    Return the additive mask of a block whose mask is `None`: the last rows and columns of a larger one, which all
    blocks with the same remainder of K share.
    """
    remainder = -block.keys % ALIGNMENT  # so many columns on the right are not used, and the first one is aligned
    name = (remainder, dtype, groups, window)
    if name not in layout.added:
        device = layout.keys.device
        queries = max(one.size for one in layout.blocks)
        width = max(one.keys for one in layout.blocks) + 2 * ALIGNMENT
        width -= width % ALIGNMENT
        column = torch.arange(width, device=device)
        own = torch.arange(queries, device=device)[:, None] + width - remainder - queries  # column of each query
        hides = column > own
        if window is not None:
            hides |= column <= own - window
        added = torch.zeros((queries, groups, width), dtype=dtype, device=device)
        layout.added[name] = added.masked_fill_(hides[:, None], -torch.inf).view(1, 1, queries * groups, width)
    added = layout.added[name]
    end = added.shape[-1] - remainder
    return added[:, :, -block.size * groups :, end - block.keys : end]


def layout(sequences: Sequences, device: torch.device | str = "cpu") -> Layout:
    """
    Lay out a row of sequences, each given as first place and length of its prefix, then of itself.

    Sequences are stacked, longest first: their own tokens start at column 0, prefixes end before it. Example: the row
    `a b c | d x1 x2 | d y1 y2 y3`, with blocks of two queries and `.` for padding:

        column       -3 -2 -1 |  0  1 |  2  3
        d y1 y2 y3    a  b  c |  d y1 | y2 y3
        a b c         .  .  . |  a  b |  c  .
        d x1 x2       a  b  c |  d x1 | x2  .
                              block 1 | block 2: from its first column on, sequences that are longer than 2

    A block's queries see the keys to their left, in their own line, except padding. A large row has a stack for each
    length of a prefix, without padding before it.
    """
    longest_first = sorted(sequences, key=lambda sequence: sequence[3], reverse=True)
    longest_prefix = max(prefix_length for _, prefix_length, _, _ in sequences)
    scores = sum(rows * (end - first) * (longest_prefix + end) for rows, first, end in spans(longest_first))
    size = sum(own for _, _, _, own in sequences)
    is_large = scores > MANY_KEYS * size
    stacks: dict[int, Sequences] = {}
    for sequence in longest_first:
        stacks.setdefault(sequence[1] if is_large else longest_prefix, []).append(sequence)
    stacked = [sequence for stack in stacks.values() for sequence in stack]
    prefix, prefix_length, start, length = torch.tensor(stacked).T.unsqueeze(-1).to(device)  # (S, 1) each

    column = torch.arange(-longest_prefix, longest_first[0][3], device=device)
    is_token = (column >= -prefix_length) & (column < length)
    place = torch.where(column < 0, prefix + prefix_length + column, start + column)
    keys = torch.where(is_token, place, padding_places(is_token, size))

    blocks = []
    query_places = []
    found = []
    top = 0
    for before, stack in stacks.items():
        for number, first, end in spans(stack):
            rows = slice(top, top + number)
            seen = slice(longest_prefix - before, longest_prefix + end)
            queries = slice(longest_prefix + first, longest_prefix + end)
            mask = None
            if not is_large:
                is_before = column[seen] <= column[queries, None]
                mask = is_token[rows, None, None, seen] & is_before
            blocks.append(Block(rows, seen, end - first, mask))
            query_places.append(keys[rows, queries].flatten())
            # padding goes to a place after the row
            found.append(keys[rows, queries].where(is_token[rows, queries], size).flatten())
        top += len(stack)

    return Layout(keys, blocks, torch.cat(query_places), order_of(found, size), longest_first, {}, {})


def spans(stack: Sequences) -> Iterator[tuple[int, int, int]]:
    """Yield the blocks of queries of sequences, longest first: how many have one, its first column and its end."""
    longest_with_prefix = max((own for _, before, _, own in stack if before > 0), default=0)
    for first, end in pairwise(block_bounds(stack[0][3], longest_with_prefix)):
        yield sum(own > first for _, _, _, own in stack), first, end


def stacked_queries(layout: Layout, heads: int, groups: int) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Return the places of all blocks' queries among the row's T·H heads, with G heads that share keys as queries of one
    head; and each head's position among them.
    """
    name = (heads, groups)
    if name not in layout.kept:
        head = torch.arange(heads, device=layout.order.device).view(-1, groups).T.flatten()
        queries = layout.queries[:, None] * heads + head
        order = layout.order[:, None] * heads + head.argsort()
        layout.kept[name] = (queries.flatten(), order.flatten())
    return layout.kept[name]


class Queries(torch.autograd.Function):
    """
    Gathers the queries `(N, F)` of all blocks from a row's `(T, F)`. Each occurs once, besides padding without
    gradient, so the backward pass gathers as well.
    """

    @staticmethod
    def forward(ctx, states, places, order):
        ctx.order = order
        return states.index_select(0, places)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.index_select(0, ctx.order), None, None


class SeenStates(torch.autograd.Function):
    """Gathers the keys or values `(S', K, F)` of each block from those of a row `(T, F)`."""

    @staticmethod
    def forward(ctx, states, layout):
        ctx.layout = layout
        stacked = states.index_select(0, layout.keys.flatten()).unflatten(0, layout.keys.shape)
        return tuple(stacked[block.rows, block.seen] for block in layout.blocks)

    @staticmethod
    def backward(ctx, *gradients):
        keys, blocks, _, order, *_, kept, _ = ctx.layout
        if "seen" not in kept:
            kept["seen"] = [keys[block.rows, block.seen].flatten() for block in blocks]
        total = gradients[0].new_zeros(len(order), gradients[0].shape[-1])
        for places, gradient in zip(kept["seen"], gradients, strict=True):
            total.index_add_(0, places, gradient.flatten(0, 1))
        return total, None


def padding_places(mask: torch.Tensor, size: int) -> torch.Tensor:
    """
    Return places for padding that cycle through the row: to a single place, the backward pass would add thousands of
    zeros sequentially.
    """
    return torch.arange(mask.numel(), device=mask.device).view(mask.shape) % size


def order_of(places: list[torch.Tensor], size: int) -> torch.Tensor:
    found = torch.cat(places)
    order = torch.empty(size + 1, dtype=torch.long, device=found.device)
    order.scatter_(0, found, torch.arange(len(found), device=found.device))
    return order[:size]


def block_bounds(longest: int, longest_with_prefix: int) -> list[int]:
    """
    Return the columns that separate blocks of queries. A block also ends with the longest sequence with a prefix (0:
    none), because prompts may be longer. A block of a few queries is merged into the one before: a completion of 128
    tokens has one more, its prompt's last token.
    """
    ends = sorted({longest, longest_with_prefix} - {0})
    bounds = set()
    for bound in range(QUERY_BLOCK, longest, QUERY_BLOCK):
        following = min(end for end in ends if end >= bound)
        if bound == following or following - bound > QUERY_BLOCK // 16:
            bounds.add(bound)
    return [0, *sorted(bounds.union(ends))]


def prefix_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layout: Layout,
    scale: float | None = None,
    window: int | None = None,
) -> torch.Tensor:
    """
    Compute scaled dot-product attention under the mask of `layout`.

    Args:
        query (`torch.Tensor` of shape `(1, H, T, D)`): Queries of one row.
        key, value (`torch.Tensor` of shape `(1, H', T, D)`): H' divides H (grouped-query attention).
        layout ([`Layout`]): On the device of `query`.
        scale (`float`, *optional*): Factor of the scores, by default `D ** -0.5`.
        window (`int`, *optional*): Maximum keys of a query, including itself.

    Returns `torch.Tensor` of shape `(1, T, H, D)`.
    """
    by_products = query.device.type == "cpu" and query.dtype is torch.bfloat16
    if query.device.type != "cpu" and torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)  # once, not by autocast in every block
        query, key, value = (states.to(dtype) for states in (query, key, value))
    _, heads, length, size = query.shape
    shared_heads = key.shape[1]
    groups = heads // shared_heads
    # A GPU's kernel with a mask needs as many heads of keys: those that share one are stacked, as queries of one head.
    places, order = stacked_queries(layout, heads, groups) if groups > 1 else (layout.queries, layout.order)
    queries = Queries.apply(query.transpose(1, 2).reshape(len(order), -1), places, order)
    in_blocks = queries.split([len(order) // length * block.sequences * block.size for block in layout.blocks])
    keys, values = (SeenStates.apply(states.transpose(1, 2).reshape(length, -1), layout) for states in (key, value))
    results = []
    with without_cudnn(query.device):
        for number, block in enumerate(layout.blocks):
            stacked = in_blocks[number].view(block.sequences, -1, shared_heads * size)
            by_head = [
                states.unflatten(-1, (shared_heads, -1)).transpose(1, 2)
                for states in (stacked, keys[number], values[number])
            ]
            added = to_add(layout, block, query.dtype, groups, window)
            if by_products:
                result = BackwardByProducts.apply(*by_head, added, scale or size**-0.5)
            else:
                result = scaled_dot_product_attention(*by_head, attn_mask=added, scale=scale)
            results.append(result.transpose(1, 2).reshape(len(in_blocks[number]), -1))
    return torch.cat(results).index_select(0, order).view(1, length, heads, -1)


@contextmanager
def without_cudnn(device: torch.device) -> Iterator[None]:
    """Attend on a GPU without cuDNN: its plan for each new shape took 34 to 63 ms on an H200."""
    enabled = device.type == "cuda" and torch.backends.cuda.cudnn_sdp_enabled()
    if enabled:
        torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        if enabled:
            torch.backends.cuda.enable_cudnn_sdp(True)


class BackwardByProducts(torch.autograd.Function):
    """
    Attention in bf16 on a CPU, backward by matrix products: three to six times as fast as torch's. Scores and their
    gradients are in fp32, as in that kernel.

    Queries `(S, H', R, D)`, stacked for the heads that share keys; keys and values `(S, H', K, D)`; an additive mask
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
        mean = (gradient.float() * result).sum(dim=-1, keepdim=True)
        # fp32: after subtracting the mean, the rest is small compared with bf16 rounding
        weight_gradient = gradient.float() @ value.float().transpose(-1, -2)
        score_gradient = weight_gradient.sub_(mean).mul_(weights).mul_(ctx.scale)
        score_gradient = score_gradient.to(query.dtype)
        query_gradient = score_gradient @ key
        key_gradient = score_gradient.transpose(-1, -2) @ query
        value_gradient = weights.to(value.dtype).transpose(-1, -2) @ gradient
        return query_gradient, key_gradient, value_gradient, None, None


def sdpa_or_prefix_attention(
    module, query, key, value, attention_mask, dropout=0.0, scaling=None, prefix_layout=None, **kwargs
):
    """Attend by `prefix_layout` if the model was called with one, else by `sdpa`."""
    if prefix_layout is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    given = {**kwargs, "dropout": dropout or None}
    unknown = [name for name in ("dropout", "softcap", "position_bias") if given.get(name) is not None]
    if unknown:
        raise ValueError(f"Attention with {' and '.join(unknown)} cannot be packed: set pack_groups: 'off'.")
    window = kwargs.get("sliding_window")
    if window is None and slides(module):
        raise ValueError("Attention that does not get its sliding window cannot be packed: set pack_groups: 'off'.")
    return prefix_attention(query, key, value, prefix_layout, scaling, window), None


def slides(module: torch.nn.Module) -> bool:
    config = getattr(module, "config", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return getattr(config, "sliding_window", None) is not None
    return "sliding" in kinds[module.layer_idx]


def register() -> None:
    """Make `"sdpa"` accept `prefix_layout`, permanently: a backward pass that recomputes a forward needs it."""
    AttentionInterface.register("sdpa", sdpa_or_prefix_attention)


READS = {"get_conv_state", "get_recurrent_state"}
FOLLOWING: set[type] = set()  # classes with a forward that accepts `prefix_layout`


class States:
    """
    A layer's state for S sequences: last inputs `(S, D, K)` of each convolution, and recurrent states `(S, …)`, by
    number. Never written in place, so gradients flow through it.
    """

    def __init__(
        self,
        convolutions: dict[int, torch.Tensor] | None = None,
        recurrent: dict[int, torch.Tensor] | None = None,
    ):
        self.convolutions = convolutions or {}
        self.recurrent = recurrent or {}

    def select(self, rows: torch.Tensor) -> "States":
        """Return the states of sequences `(S',)`, with repetitions."""
        convolutions = {number: state.index_select(0, rows) for number, state in self.convolutions.items()}
        recurrent = {number: state.index_select(0, rows) for number, state in self.recurrent.items()}
        return States(convolutions, recurrent)

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        return self.convolutions.get(state_idx)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        return self.recurrent.get(state_idx)

    def update_conv_state(
        self, inputs: torch.Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int = 1, **kwargs
    ) -> torch.Tensor:
        """Store a convolution's last inputs `(S, D, K)`, and return them with the new ones."""
        before = self.convolutions.get(state_idx)
        if before is None:
            seen = pad(inputs, (max(0, conv_kernel_size - inputs.shape[-1]), 0))
        else:
            seen = torch.cat([before, inputs], dim=-1)
        self.convolutions[state_idx] = seen[..., -conv_kernel_size:]
        return seen

    def update_recurrent_state(
        self, state: torch.Tensor, layer_idx: int, state_idx: int = 0, **kwargs
    ) -> torch.Tensor:
        self.recurrent[state_idx] = state
        return state


class StatePlan(NamedTuple):
    """
    A layer's calls for a row of T tokens.

    Attributes:
        prompts (`torch.LongTensor` of shape `(P, W)`): Places of the prompts, padded on the left: the last column's
            state is the final one.
        mask (`torch.LongTensor` of shape `(P, W)`): 0 for padding, else 1.
        prompt_of (`torch.LongTensor` of shape `(S,)`): Of each other sequence, longest first.
        blocks (`list[torch.LongTensor]` of shape `(S', W')`): Places of each block's tokens, padded on the right.
        order (`torch.LongTensor` of shape `(T,)`): Position of each place among all results.
    """

    prompts: torch.Tensor
    mask: torch.Tensor
    prompt_of: torch.Tensor
    blocks: list[torch.Tensor]
    order: torch.Tensor

    @classmethod
    def from_sequences(cls, sequences: Sequences, device: torch.device) -> "StatePlan":
        size = sum(length for _, _, _, length in sequences)
        roots = [(start, length) for _, before, start, length in sequences if before == 0 and length > 0]
        others = [sequence for sequence in sequences if sequence[1] > 0]
        number_of = {start: number for number, (start, _) in enumerate(roots)}
        prompt_of = torch.tensor([number_of[prefix] for prefix, _, _, _ in others], dtype=torch.long)

        starts, lengths = torch.tensor(roots).T.unsqueeze(-1)
        widest = int(lengths.max())
        column = torch.arange(widest) - widest + lengths
        mask = column >= 0
        prompts = torch.where(mask, starts + column, padding_places(mask, size))
        found = [prompts.where(mask, size).flatten()]
        blocks = []
        longest = max((length for _, _, _, length in others), default=0)
        for first, end in pairwise(block_bounds(longest, longest)):
            longer = [(start, length) for _, _, start, length in others if length > first]
            starts, lengths = torch.tensor(longer).T.unsqueeze(-1)
            # At least two columns: for a single token, layers run a generation step, which writes in place.
            column = torch.arange(first, max(end, first + 2))
            is_token = column < lengths
            block = torch.where(is_token, starts + column, padding_places(is_token, size))
            blocks.append(block)
            found.append(block.where(is_token, size).flatten())  # padding goes to a place after the row

        return cls(
            prompts.to(device),
            mask.long().to(device),
            prompt_of.to(device),
            [block.to(device) for block in blocks],
            order_of(found, size).to(device),
        )


@cache
def reads_state(kind: type) -> bool:
    """Return whether layers read a state from an argument `cache` (transformers ≥ 5.24)."""
    if "cache" not in inspect.signature(kind.forward).parameters:
        return False
    for method in vars(kind).values():
        code = getattr(inspect.unwrap(method), "__code__", None) if callable(method) else None
        if code is not None and not READS.isdisjoint(code.co_names):
            return True
    return False


def has_state(layer: torch.nn.Module) -> bool:
    return any(reads_state(type(module)) for module in layer.modules())


def accept_prefixes(model: torch.nn.Module) -> None:
    """Make layers with a state accept `prefix_layout`: their classes, for copies and recomputed forwards."""
    for kind in {type(module) for module in model.modules()}:
        if reads_state(kind) and kind not in FOLLOWING:
            kind.forward = compute_by_sequence(kind.forward)
            FOLLOWING.add(kind)


def compute_by_sequence(forward: Callable) -> Callable:
    """Let a layer's forward compute a row `(1, T, D)` sequence by sequence if it gets a `prefix_layout`."""

    @wraps(forward)
    def forward_by_sequence(
        self, hidden_states: torch.Tensor, *args, prefix_layout: Layout | None = None, **kwargs
    ) -> torch.Tensor:
        if prefix_layout is None:
            return forward(self, hidden_states, *args, **kwargs)
        if "states" not in prefix_layout.kept:
            prefix_layout.kept["states"] = StatePlan.from_sequences(prefix_layout.sequences, hidden_states.device)
        plan = prefix_layout.kept["states"]
        kwargs = {name: value for name, value in kwargs.items() if name not in ("cache", "attention_mask")}
        row = hidden_states[0]
        states = States()
        results = [forward(self, row[plan.prompts], cache=states, attention_mask=plan.mask, **kwargs).flatten(0, 1)]
        rows = plan.prompt_of
        for places in plan.blocks:
            states = states.select(rows[: len(places)])
            rows = torch.arange(len(places), device=row.device)
            results.append(forward(self, row[places], cache=states, attention_mask=None, **kwargs).flatten(0, 1))
        return torch.cat(results).index_select(0, plan.order).unsqueeze(0)

    return forward_by_sequence
