"""Attention in blocks against one dense mask: torch's own attention is the control."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from trl_prorl.fast import prefix as module
from trl_prorl.fast.prefix import layout, prefix_attention, sdpa_or_prefix_attention


def dense(sequences, window=None):
    """The mask over the whole row, place by place."""
    size = sum(length for *_, length in sequences)
    mask = torch.zeros(size, size, dtype=torch.bool)
    for prefix, prefix_length, start, length in sequences:
        for own in range(length):
            seen = [*range(prefix, prefix + prefix_length), *range(start, start + own + 1)]
            mask[start + own, seen[-(window or size) :]] = True
    return mask


def row_of(groups):
    """Sequences of a row: each group's prefix, and what continues it."""
    sequences = []
    end = 0
    for prefix, lengths in groups:
        shared = (end, prefix)
        sequences.append((end, 0, *shared))
        end += prefix
        for length in lengths:
            sequences.append((*shared, end, length))
            end += length
    return sequences


def in_one(query, key, value, mask, scale=None):
    result = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=True)
    return result.transpose(1, 2)


@settings(deadline=None, max_examples=150, derandomize=True)
@given(
    groups=st.lists(
        st.tuples(st.integers(0, 7), st.lists(st.integers(1, 11), min_size=1, max_size=4)), min_size=1, max_size=3
    ),
    block=st.sampled_from([1, 3, 8, 16, 128]),
    heads=st.sampled_from([(4, 4), (4, 2), (6, 1)]),
    scale=st.sampled_from([None, 0.3]),
    window=st.sampled_from([None, 4]),
    many_keys=st.sampled_from([0, module.MANY_KEYS]),
)
def test_values_and_gradients_are_those_of_a_dense_mask(groups, block, heads, scale, window, many_keys):
    sequences = row_of(groups)
    mask = dense(sequences, window)
    torch.manual_seed(0)
    states = [torch.randn(1, count, len(mask), 8, dtype=torch.float64) for count in (heads[0], heads[1], heads[1])]
    weights = torch.randn(1, len(mask), heads[0], 8, dtype=torch.float64)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "QUERY_BLOCK", block)
        patch.setattr(module, "MANY_KEYS", many_keys)
        for blocks in (True, False):
            query, key, value = (state.clone().requires_grad_() for state in states)
            if blocks:
                result = prefix_attention(query, key, value, layout(sequences), scale, window)
            else:
                result = in_one(query, key, value, mask, scale)
            (result * weights).sum().backward()
            found.append([result, query.grad, key.grad, value.grad])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-10)


def test_what_it_cannot_compute_is_refused():
    states = torch.zeros(1, 1, 2, 4)
    for extra in ({"softcap": 30.0}, {"position_bias": torch.zeros(1, 1, 2, 2)}, {"dropout": 0.1}):
        given = {"prefix_layout": layout([(0, 0, 0, 2)]), **extra}
        with pytest.raises(ValueError, match=next(iter(extra))):
            sdpa_or_prefix_attention(torch.nn.Module(), states, states, states, None, **given)


@pytest.mark.parametrize("heads, many_keys", [((4, 4), module.MANY_KEYS), ((6, 2), module.MANY_KEYS), ((6, 2), 0)])
def test_in_bf16_its_backward_errs_as_torchs_does(heads, many_keys, monkeypatch):
    """Against a dense mask in double precision; torch's kernel under the same mask is the control."""
    monkeypatch.setattr(module, "MANY_KEYS", many_keys)
    sequences = row_of([(9, [5, 30, 2]), (20, [3, 7])])
    mask = dense(sequences)

    def gradients(states, weights, attend):
        query, key, value = (state.clone().requires_grad_() for state in states)
        result = attend(query, key, value)
        return torch.autograd.grad(result, (query, key, value), weights.to(result.dtype))

    ratios = []
    for seed in range(6):
        torch.manual_seed(seed)
        states = [torch.randn(1, count, len(mask), 16).bfloat16() for count in (heads[0], heads[1], heads[1])]
        weights = torch.randn(1, len(mask), heads[0], 16).bfloat16()
        doubles = [state.double() for state in states]
        exact = gradients(doubles, weights, lambda *states: in_one(*states, mask))
        torchs = gradients(states, weights, lambda *states: in_one(*states, mask))
        mine = gradients(states, weights, lambda *states: prefix_attention(*states, layout(sequences)))
        of_seed = zip(exact, torchs, mine, strict=True)
        ratios.append([((ours - true).norm() / (theirs - true).norm()).item() for true, theirs, ours in of_seed])
    assert (torch.tensor(ratios).mean(dim=0) < 1.1).all(), "of the queries, the keys, the values"
