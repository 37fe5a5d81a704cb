"""
Layers with a state (Gated DeltaNet, Mamba, short convolutions) in one row of tokens that holds many sequences.

A prompt is computed once. Every completion continues from the state after the prompt: the last inputs of the
convolution, and the recurrent state. The layer's own `forward` computes both, given [`States`] in place of the cache
that transformers gives it in generation. So padded and packed rows run the same code, and gradients flow through the
states:

    row         a b c | d x1 x2 | d y1 y2 y3        prompt a b c, completions d x1 x2 and d y1 y2 y3
    call 1      a b c                               leaves a state
    call 2      d y1 y2 y3                          each continues from a copy of it
                d x1 x2 .

Completions are computed in the blocks of [`~trl_prorl.fast.prefix_attention`], so a completion that has ended is
not computed in later blocks.
"""

import inspect
from collections.abc import Callable
from functools import cache, wraps
from itertools import pairwise
from typing import NamedTuple

import torch
from torch.nn.functional import pad

from .prefix_attention import Layout, block_bounds


# The methods of transformers' cache by which a layer reads its state.
READS = {"get_conv_state", "get_recurrent_state"}
FOLLOWING: set[type] = set()  # the classes whose forward accepts `prefix_layout`


class States:
    """
    The state of one layer for S sequences. Has the methods of transformers' cache that such a layer calls, but writes
    nothing in place, so gradients flow through it.

    Args:
        convolutions (`dict[int, torch.Tensor]`, *optional*):
            By the number of the convolution, its last inputs, of shape `(S, D, K)`.
        recurrent (`dict[int, torch.Tensor]`, *optional*): By number, recurrent states of shape `(S, …)`.
    """

    def __init__(
        self,
        convolutions: dict[int, torch.Tensor] | None = None,
        recurrent: dict[int, torch.Tensor] | None = None,
    ):
        self.convolutions = convolutions or {}
        self.recurrent = recurrent or {}

    def select(self, rows: torch.Tensor) -> "States":
        """Return the states of some sequences `(S',)`, each any number of times."""
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
        """Keep the last inputs `(S, D, K)` of a convolution, and return them with the new ones."""
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


class Plan(NamedTuple):
    """
    The calls in which a layer computes the sequences of a row of T tokens.

    Attributes:
        prompts (`torch.LongTensor` of shape `(P, W)`): The places of the sequences that have no prefix, padded on the
            left: their state after the last column is the state after their last token.
        mask (`torch.LongTensor` of shape `(P, W)`): 1 where a place is not padding.
        prompt_of (`torch.LongTensor` of shape `(S,)`): For each other sequence, the longest first, its prompt.
        blocks (`list[torch.LongTensor]` of shape `(S', W')`): For each block, the places of the next tokens of the
            first S' of these sequences, padded on the right.
        order (`torch.LongTensor` of shape `(T,)`): For each place of the row, its position among all results.
    """

    prompts: torch.Tensor
    mask: torch.Tensor
    prompt_of: torch.Tensor
    blocks: list[torch.Tensor]
    order: torch.Tensor

    @classmethod
    def of(cls, sequences: list[tuple[int, int, int, int]], device: torch.device) -> "Plan":
        """Plan a row, given the sequences of [`~trl_prorl.fast.prefix_attention.layout`]."""
        size = sum(length for _, _, _, length in sequences)
        roots = [(start, length) for _, before, start, length in sequences if before == 0 and length > 0]
        others = [sequence for sequence in sequences if sequence[1] > 0]
        others.sort(key=lambda sequence: sequence[3], reverse=True)
        number_of = {start: number for number, (start, _) in enumerate(roots)}
        prompt_of = torch.tensor([number_of[prefix] for prefix, _, _, _ in others], dtype=torch.long)

        starts, lengths = torch.tensor(roots).T.unsqueeze(-1)
        widest = int(lengths.max())
        column = torch.arange(widest) - widest + lengths
        mask = column >= 0
        prompts = torch.where(mask, starts + column, spread(mask.shape, size))
        found = [prompts.where(mask, size).flatten()]
        blocks = []
        longest = max((length for _, _, _, length in others), default=0)
        for first, end in pairwise(block_bounds(longest, longest)):
            longer = [(start, length) for _, _, start, length in others if length > first]
            starts, lengths = torch.tensor(longer).T.unsqueeze(-1)
            # At least two columns: with a single token, layers compute a step of generation, which writes in place.
            column = torch.arange(first, max(end, first + 2))
            is_token = column < lengths
            block = torch.where(is_token, starts + column, spread(is_token.shape, size))
            blocks.append(block)
            found.append(block.where(is_token, size).flatten())  # padding goes to a place behind the row

        places = torch.cat(found)
        order = torch.empty(size + 1, dtype=torch.long)
        order.scatter_(0, places, torch.arange(len(places)))
        return cls(
            prompts.to(device),
            mask.long().to(device),
            prompt_of.to(device),
            [block.to(device) for block in blocks],
            order[:size].to(device),
        )


def spread(shape: torch.Size, size: int) -> torch.Tensor:
    """
    Return places for padding that take each place of the row in turn: if all padding took one place, the backward pass
    would add thousands of zeros to it, one after another.
    """
    return torch.arange(shape.numel()).view(shape) % size


@cache
def reads_state(kind: type) -> bool:
    """Return whether a class of layers reads a state from an argument `cache`, as in transformers from 5.24 on."""
    if "cache" not in inspect.signature(kind.forward).parameters:
        return False
    for method in vars(kind).values():
        code = getattr(inspect.unwrap(method), "__code__", None) if callable(method) else None
        if code is not None and not READS.isdisjoint(code.co_names):
            return True
    return False


def has_state(layer: torch.nn.Module) -> bool:
    """Return whether a layer, or one of its modules, carries a state from token to token."""
    return any(reads_state(type(module)) for module in layer.modules())


def accept_prefixes(model: torch.nn.Module) -> None:
    """
    Let the classes of a model's layers with a state accept `prefix_layout`. Without that argument they compute what
    they did before. The change is to the class, so that copies of the model have it, and a backward pass that
    recomputes a forward.
    """
    for kind in {type(module) for module in model.modules()}:
        if reads_state(kind) and kind not in FOLLOWING:
            kind.forward = compute_by_sequence(kind.forward)
            FOLLOWING.add(kind)


def compute_by_sequence(forward: Callable) -> Callable:
    """
    Make a layer's forward compute a row sequence by sequence if it is given a layout.

    Args:
        forward (`Callable`): The layer's own: `hidden_states` of shape `(S, W, D)`, `cache` and `attention_mask` →
            a tensor of that shape.

    Returns `Callable`: The same, with an argument `prefix_layout`; with it, `hidden_states` is a row `(1, T, D)`.
    """

    @wraps(forward)
    def forward_by_sequence(
        self, hidden_states: torch.Tensor, *args, prefix_layout: Layout | None = None, **kwargs
    ) -> torch.Tensor:
        if prefix_layout is None:
            return forward(self, hidden_states, *args, **kwargs)
        if "states" not in prefix_layout.added:
            prefix_layout.added["states"] = Plan.of(prefix_layout.sequences, hidden_states.device)
        plan = prefix_layout.added["states"]
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
