"""The memory of a generation batch: by hand for Qwen2.5-1.5B, and against what sampling holds at once."""

from types import SimpleNamespace

import psutil
import pytest
import torch
from live_bytes import LiveBytes
from packed_models import needs_states
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, Qwen2Config

from trl_prorl.eval.readiness.finding import LOOK
from trl_prorl.eval.readiness.memory import (
    GIB,
    generation_findings,
    process_share,
    row_bytes,
    rows_that_fit,
    whole_groups,
)
from trl_prorl.fast.choice import Choice
from trl_prorl.fast.generation import CompactGeneration
from trl_prorl.fast.merged_copy import MergedCopy
from trl_prorl.fast.recording import full_size, row_size


QWEN = {
    "vocab_size": 151_936,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
BF16 = torch.bfloat16
FP32 = torch.float32


GEMMA = {"num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256}
QWEN35 = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256}
STATE = {"linear_num_key_heads": 16, "linear_num_value_heads": 16, "linear_key_head_dim": 128}
# Convolutions of 4 tokens of keys, queries and values; the states of 16 heads in fp32
QWEN35_STATE = 3 * 16 * 128 * 4 * 2 + 16 * 128 * 128 * 4
SMALL = {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 64}


@pytest.mark.parametrize(
    "kind, sizes, dtype, cache, logits",
    [
        # Keys and values, 28 layers of 2 heads × 128; logits, scores and probabilities of 151,936 tokens.
        ("qwen2", QWEN, BF16, 640 * 2 * 28 * 2 * 128 * 2, 151_936 * (2 + 4 + 4)),
        ("qwen2", QWEN, FP32, 640 * 2 * 28 * 2 * 128 * 4, 151_936 * (4 + 4 + 4)),
        # Without grouped heads; with heads of another size than the model's width gives.
        ("gpt2", {"n_embd": 32, "n_layer": 3, "n_head": 2}, BF16, 640 * 2 * 3 * 32 * 2, 50_257 * 10),
        ("qwen3", {**QWEN, "head_dim": 64}, BF16, 640 * 2 * 28 * 2 * 64 * 2, 151_936 * 10),
        # Five layers with a window of 512 tokens, and one without. Three with a state, of which one is updated.
        ("gemma3_text", {**SMALL, **GEMMA, "sliding_window": 512}, BF16, 2 * 256 * 2 * (5 * 512 + 640), 1000 * 10),
        pytest.param(
            "qwen3_5_text",
            {**SMALL, **QWEN35, **STATE},
            BF16,
            640 * 2 * 2 * 256 * 2 + (3 + 3) * QWEN35_STATE,
            1000 * 10,
            marks=needs_states,
        ),
    ],
)
def test_bytes_of_a_completion_by_hand(kind, sizes, dtype, cache, logits):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes), dtype=dtype)
    assert row_bytes(model, 640) == (cache, logits)


def test_the_merged_copy_of_qwen_1_5b_by_hand():
    """
    28 layers of q and o (1536 × 1536), k and v (1536 × 256), three of 1536 × 8960, and biases of q, k and v. On a
    device that holds no values, where as on a GPU nothing is packed.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(Qwen2Config(**QWEN), dtype=BF16)
        policy = get_peft_model(model, LoraConfig(r=32, target_modules="all-linear"))
    assert MergedCopy(policy).bytes == 2_620_506_112


@torch.no_grad()
@pytest.mark.parametrize("dtype, most", [(BF16, None), (FP32, 8)])
def test_what_is_predicted_is_what_sampling_holds_at_once(dtype, most):
    """Counted at the operators. A prompt's own cache, and what a layer computes of one token, come on top."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 8192, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    config = Qwen2Config(**sizes, num_attention_heads=4, num_key_value_heads=2)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    plain = {"max_new_tokens": 24, "pad_token_id": 0, "eos_token_id": None, "disable_compile": True}
    settings = GenerationConfig(**plain, do_sample=True, temperature=0.7, top_k=0)
    prompts = [[5] * 100] * 16 + [[6] * 90] * 16
    predicted = sum(row_bytes(model, 100 + 24)) * (most or 32)
    part = CompactGeneration(model, 0.7, max_rows=most)
    with LiveBytes(*model.parameters(), *model.buffers()) as live:
        part.sample(model, prompts, settings, [])
    assert live.peak == pytest.approx(predicted, rel=0.1)


@needs_states
@torch.no_grad()
@pytest.mark.parametrize("layers", [4, 8])
def test_what_layers_with_a_state_hold_at_once(layers):
    """While one is updated, its old state, its new one and their terms are there, however many layers there are."""
    torch.manual_seed(0)
    heads = {"linear_num_key_heads": 8, "linear_num_value_heads": 8}
    widths = {"head_dim": 32, "linear_key_head_dim": 64, "linear_value_head_dim": 64, "vocab_size": 512}
    sizes = {**SMALL, **QWEN35, **heads, **widths, "num_hidden_layers": layers}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3_5_text", **sizes), dtype=FP32).eval()
    plain = {"max_new_tokens": 8, "pad_token_id": 0, "eos_token_id": None, "disable_compile": True}
    settings = GenerationConfig(**plain, do_sample=True, temperature=0.7, top_k=0)
    with LiveBytes(*model.parameters(), *model.buffers()) as live:
        CompactGeneration(model, 0.7).sample(model, [[5] * 20] * 16, settings, [])
    assert live.peak == pytest.approx(sum(row_bytes(model, 28)) * 16, rel=0.1)


@pytest.mark.parametrize(
    "rows, fits, group, at_once",
    [
        (512, 600, 64, 512),
        (512, 511, 64, 256),  # two slices of four groups, not one of seven and one of one
        (512, 200, 64, 192),  # three groups at once: 3 + 3 + 2
        (512, 40, 64, 40),  # 13 slices; a group is cut
    ],
)
def test_rows_at_once_by_hand(rows, fits, group, at_once):
    assert whole_groups(rows, fits, group) == at_once


@pytest.mark.parametrize(
    "room, fits, at_once, change",
    [
        # Of 1 GiB each, next to a copy of 2 GiB: 32 completions in groups of 8.
        (34.5, 32, 32, ""),
        (20.5, 18, 16, "set compact_max_rows: 16"),
        (9.5, 7, 7, "set compact_max_rows: 7"),
        (0.5, 0, 0, "max_completion_length"),
    ],
)
def test_what_is_advised_for_32_completions_in_groups_of_8(room, fits, at_once, change):
    *found, advice = rows_that_fit(GIB, 2 * GIB, room * GIB, 32, 8)
    assert found == [fits, at_once]
    assert change in advice


def test_a_recording_fits_with_all_its_rows():
    for rows in range(1, 100):
        fits = full_size(rows)
        assert row_size(fits) <= rows < row_size(fits + 1)
    assert rows_that_fit(GIB, 2 * GIB, 20.5 * GIB, 32, 8, recorded=True)[0] == 16
    assert full_size(0) == 0


def test_the_memory_of_a_process(monkeypatch):
    """On a card of 24 GiB we hold 6 of 9 that we have asked for, another process 10, and 5 are free."""
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 6 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 9 * GIB)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5 * GIB, 24 * GIB))
    assert process_share(torch.device("cuda", 0)) == (6 * GIB, 14 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=3 * GIB))
    held, total = process_share(torch.device("cpu"))
    assert total - held == 3 * GIB
    assert held == pytest.approx(psutil.Process().memory_info().rss, rel=0.05)


def test_the_room_of_a_trainer(make_trainer, monkeypatch):
    """Of 1,000,000 bytes nine tenths, less what is held and Adam's two moments of what is trained."""
    monkeypatch.setattr("trl_prorl.eval.readiness.memory.process_share", lambda device: (100_000, 1_000_000))

    def measured(recorded=False, **keys):
        trainer = make_trainer(compact_generation="on", gradient_accumulation_steps=2, **keys)
        trainer.compact.replayed = Choice(recorded)
        (finding,) = generation_findings(trainer, 20)
        assert (finding.level == LOOK) == (finding.values["needed_gib"] > finding.values["room_gib"])
        return trainer, finding.values["needed_gib"] * GIB, finding.values["room_gib"] * GIB

    trainer, needed, room = measured()
    trained = sum(param.numel() * 4 for param in trainer.model.parameters() if param.requires_grad)
    assert room == pytest.approx(800_000 - 2 * trained)
    # 16 completions of 26 tokens in 2 layers of 2 heads × 16, and 261 tokens of the vocabulary, in fp32.
    of_rows = 16 * (26 * 2 * 2 * 32 * 4 + 261 * 12)
    assert needed == pytest.approx(of_rows + trainer.compact.copy.bytes)
    _, needed, _ = measured(compact_max_rows=3)
    assert needed == pytest.approx(of_rows * 3 / 16 + trainer.compact.copy.bytes)
    # A recording has 128 places, and four rows for three.
    _, needed, _ = measured(recorded=True, compact_max_rows=3)
    assert needed == pytest.approx(4 * (128 * 2 * 2 * 32 * 4 + 261 * 12) + trainer.compact.copy.bytes)
    assert generation_findings(make_trainer(compact_generation="off"), 20) == []
