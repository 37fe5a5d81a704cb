"""Packed rows against TRL's padded ones, TRL's own method being the control; and what is known to stand against it."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from packed_models import MOE, SIZES, batch_of, build, needs_states, padded_logps, with_adapter, with_head
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModelForImageTextToText,
    AutoTokenizer,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from trl.trainer import utils

from trl_prorl.eval.run_folder.reading import read_env
from trl_prorl.fast import prefix
from trl_prorl.fast.families import listing_obstacle
from trl_prorl.fast.packing import packed_logps


@pytest.fixture(scope="module")
def models():
    return {"full": with_head(build()), "lora": with_adapter(with_head(build()))}


def gradient(model, value):
    model.zero_grad()
    value.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def weighted(logps, entropies=None):
    """A loss in which every token has a weight of its own."""
    generator = torch.Generator().manual_seed(1)
    loss = (logps * torch.randn(logps.shape, generator=generator)).sum()
    return loss if entropies is None else loss + (entropies * torch.randn(logps.shape, generator=generator)).sum()


def visible(layout):
    """Who sees whom, `(T, T)`: with equal scores a result is the mean of the values seen."""
    size = len(layout.order)
    nothing = torch.zeros(1, 1, size, 1)
    values = torch.eye(size)[None, None]
    return (prefix.prefix_attention(nothing, nothing, values, layout)[0, :, 0] > 0).int()


lengths = st.tuples(st.integers(1, 9), st.lists(st.integers(0, 12), min_size=1, max_size=6))


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    groups=st.lists(lengths, min_size=1, max_size=4),
    masked=st.sets(st.integers(0, 12), max_size=4),
    seed=st.integers(0, 2**16),
    block=st.sampled_from([1, 5, 128]),
    adapter=st.sampled_from(["full", "lora"]),
    entropy=st.booleans(),
    as_on_a_gpu=st.booleans(),
)
@example([(1, [3, 1])], set(), 0, 128, "full", True, False)  # a prompt of one token
@example([(5, [0, 4, 0])], {1}, 0, 128, "lora", True, True)  # nothing to score
@example([(1, [2])], {0}, 0, 128, "full", False, False)  # nothing to score after one token
def test_values_and_gradients_are_trls(models, groups, masked, seed, block, adapter, entropy, as_on_a_gpu):
    """On a GPU TRL's head scores labelled positions alone."""
    model = models[adapter]
    scored = []
    kernel = utils._ChunkedLogProbFunction.apply
    counting = SimpleNamespace(apply=lambda hidden, *others: scored.append(len(hidden)) or kernel(hidden, *others))
    ids, mask, keep = batch_of(groups, seed, masked)
    packed = Mock(wraps=model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix, "QUERY_BLOCK", block)
        if as_on_a_gpu:
            patch.setattr(utils, "_use_triton", lambda device: True)
            patch.setattr(utils, "_ChunkedLogProbFunction", counting)
        logps, entropies = packed_logps(packed, ids, mask, keep, entropy)
    expected, expected_entropies = padded_logps(model, ids, mask, keep, entropy)
    assert sum(scored) == (mask[:, -keep:].sum() if as_on_a_gpu else 0)
    assert logps.shape == expected.shape
    assert logps.dtype == expected.dtype
    torch.testing.assert_close(logps, expected, atol=2e-6, rtol=0)
    outside = mask[:, -keep:] == 0
    assert (logps[outside] == 0).all()
    assert (expected[outside] == 0).all()
    assert (entropies is None) == (not entropy)
    if entropy:
        torch.testing.assert_close(entropies, expected_entropies, atol=2e-6, rtol=0)
        assert (entropies[outside] == 0).all()
        assert (expected_entropies[outside] == 0).all()
    ours = gradient(model, weighted(logps, entropies))
    theirs = gradient(model, weighted(expected, expected_entropies))
    assert (ours - theirs).norm() <= 1e-6 * theirs.norm()
    (call,) = packed.call_args_list
    assert call.kwargs["input_ids"].numel() <= ids.numel()


def test_one_packed_row_by_hand():
    """Prompt 5 6 7 8 with completions 11 12 and 21 22 23: 3 + 3 + 4 positions instead of 3 padded rows of 8."""
    ids = torch.tensor([[0, 5, 6, 7, 8, 11, 12, 0], [0, 5, 6, 7, 8, 21, 22, 23], [0, 5, 6, 7, 8, 9, 9, 9]])
    mask = torch.tensor([[0, 1, 1, 1, 1, 1, 1, 0], [0, 1, 1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 0, 0, 0]])

    def columns(**inputs):
        """A model whose log-probability of a label is its column in the packed row."""
        labels = inputs["labels"][:, 1:]
        column = torch.arange(1.0, labels.shape[1] + 1).expand(labels.shape)
        return SimpleNamespace(log_probs=column.masked_fill(labels == -100, 0), entropy=None)

    model = Mock(side_effect=columns)
    logps, entropies = packed_logps(model, ids, mask, logits_to_keep=3)
    inputs = model.call_args.kwargs
    # The longer completion comes first.
    assert inputs["input_ids"].tolist() == [[5, 6, 7, 8, 21, 22, 23, 8, 11, 12]]
    assert inputs["position_ids"].tolist() == [[0, 1, 2, 3, 4, 5, 6, 3, 4, 5]]
    assert inputs["labels"].tolist() == [[-100, -100, -100, -100, 21, 22, 23, -100, 11, 12]]
    assert inputs["fused_lm_head"] is True
    seen = torch.ones(10, 10, dtype=torch.int).tril()
    seen[7:, 3:7] = 0  # the second completion sees the prompt but its last token, which stands before it again
    assert visible(inputs["prefix_layout"]).equal(seen)
    assert logps.tolist() == [[8, 9, 0], [4, 5, 6], [0, 0, 0]]
    assert entropies is None


@pytest.mark.parametrize("where", [(0, -1), (0, 3), (1, 7), (0, slice(0, 6))])
def test_another_mask_is_refused(models, where):
    """A prompt padded on the right, with a hole, or empty; a completion with a hole."""
    ids, mask, keep = batch_of([(6, [5, 7])], shuffled=False)
    mask[where if where[1] != -1 else (0, 5)] = 0
    with pytest.raises(ValueError, match="attention_mask"):
        packed_logps(models["full"], ids, mask, keep)


def test_a_model_that_does_not_hand_the_layout_on_fails_and_is_no_wrong_number(models):
    ids, mask, keep = batch_of([(6, [5, 7])])

    def forgetful(**inputs):
        inputs.pop("prefix_layout")
        return models["full"](**inputs)

    with pytest.raises(RuntimeError, match="attn_mask"):
        packed_logps(forgetful, ids, mask, keep)


def test_a_call_without_a_layout_is_transformers_own(models):
    """Generation and padded forwards: not a bit changes by packing having been used."""
    ids, mask, keep = batch_of([(6, [5, 7, 2]), (3, [6, 2])])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(AttentionInterface._global_mapping, "sdpa", sdpa_attention_forward)
        theirs = models["full"](input_ids=ids, attention_mask=mask).logits
        packed_logps(models["full"], ids, mask, keep)
        assert AttentionInterface._global_mapping["sdpa"] is not sdpa_attention_forward
        assert models["full"](input_ids=ids, attention_mask=mask).logits.equal(theirs)


class Custom(Qwen2ForCausalLM):
    """As if from the Hub with `trust_remote_code`."""


def flash():
    model = build()
    model.config._attn_implementation = "flash_attention_2"  # as a model loaded so would have it
    return model


def vision():
    config = AutoConfig.for_model("gemma3")
    with torch.device("meta"):
        return AutoModelForImageTextToText.from_config(config, attn_implementation="sdpa")


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
REFUSED = [
    (flash, "flash_attention_2"),
    (lambda: build(attention="eager"), "eager"),
    pytest.param(lambda: build("mamba", attention=None, state_size=4), "mamba", marks=needs_states),
    (lambda: build("rwkv", attention=None, attention_hidden_size=32), "rwkv"),
    (lambda: build("gpt2", num_key_value_heads=None, intermediate_size=None, n_inner=48), "gpt2"),
    (lambda: build("llama", rope_parameters=DYNAMIC), "rope_type='dynamic'"),
    (vision, "gemma3"),
    (lambda: build("olmoe", sliding_window=64, **MOE), "olmoe"),
    (lambda: Custom(Qwen2Config(**SIZES)), "Custom"),
    (lambda: with_adapter(flash()), "flash_attention_2"),
]


@pytest.mark.parametrize("make, named", REFUSED)
def test_what_is_not_listed_is_named(make, named):
    assert named in listing_obstacle(make(), "shared_prompts")


def test_auto_falls_back_and_on_refuses_what_is_not_listed(run, make_trainer, tiny_model, largest_difference):
    tokens = AutoTokenizer.from_pretrained(tiny_model)
    sizes = {"vocab_size": len(tokens), "pad_token_id": tokens.pad_token_id, "head_dim": 8}
    keys = {"lora": False, "max_steps": 2}
    with pytest.raises(ValueError, match="pack_groups='on'.*Nemotron"):
        make_trainer(model=build("nemotron", **sizes), pack_groups="on", **keys)
    padded, fallen_back = (run(model=build("nemotron", **sizes), pack_groups=pack, **keys) for pack in ("off", "auto"))
    assert largest_difference(padded, fallen_back) == 0.0
    packing = str(fallen_back.acceleration.packing)
    assert packing.startswith("off: NemotronForCausalLM")
    assert read_env(fallen_back.args.output_dir)["execution"]["packing"] == packing
