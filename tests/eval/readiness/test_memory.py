"""The memory of a generation batch: by hand for Qwen2.5-1.5B, and against what sampling holds at once."""

from types import SimpleNamespace

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from live_bytes import LiveBytes
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, Qwen2Config

from trl_prorl.eval.readiness.finding import FINE, LOOK
from trl_prorl.eval.readiness.memory import (
    GIB,
    GenerationMemory,
    cache_bytes,
    generation_finding,
    generation_findings,
    generation_memory,
    process_share,
    whole_groups,
)
from trl_prorl.fast.merged_copy import MergedCopy
from trl_prorl.fast.sampling import CompactGeneration


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


def test_qwen_1_5b_by_hand():
    """28 layers with keys and values of 2 heads × 128; of 151,936 tokens logits, scores and probabilities."""
    config = Qwen2Config(**QWEN)
    assert cache_bytes(config, 2) == 28_672  # 2 × 28 × 2 × 128 × 2
    assert cache_bytes(config, 4) == 57_344
    memory = generation_memory(config, BF16, 128 + 512, 2_620_506_112)
    assert memory.row == 640 * 28_672 + 151_936 * (2 + 4 + 4)  # 19,869,440
    assert memory.needed(512) == 9_395_240_960 + 777_912_320 + 2_620_506_112  # cache, logits, copy
    assert memory.rows_that_fit(memory.needed(512)) == 512
    assert memory.rows_that_fit(memory.needed(512) - 1) == 511
    assert memory.rows_that_fit(2_000_000_000) == 0  # less than the copy
    assert generation_memory(config, FP32, 640, 0).row == 640 * 57_344 + 151_936 * 12


def test_the_merged_copy_of_qwen_1_5b_by_hand():
    """
    28 layers of q and o (1536 × 1536), k and v (1536 × 256), three of 1536 × 8960, and biases of q, k and v. On a
    device that holds no values, where as on a GPU nothing is packed.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(Qwen2Config(**QWEN), dtype=BF16)
        policy = get_peft_model(model, LoraConfig(r=32, target_modules="all-linear"))
    assert MergedCopy(policy).bytes == 2_620_506_112


@pytest.mark.parametrize(
    "kind, keys, per_token",
    [
        ("gpt2", {"n_embd": 32, "n_layer": 3, "n_head": 2}, 2 * 3 * 32 * 2),  # no grouped heads
        ("qwen3", {"num_hidden_layers": 3, "num_key_value_heads": 2, "head_dim": 64}, 2 * 3 * 2 * 64 * 2),
    ],
)
def test_other_families(kind, keys, per_token):
    assert cache_bytes(AutoConfig.for_model(kind, **keys), 2) == per_token


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
    predicted = generation_memory(config, dtype, 100 + 24, 0)
    part = CompactGeneration(model, 0.7, max_rows=most)
    with LiveBytes(*model.parameters(), *model.buffers()) as live:
        part.sample(model, prompts, settings, [])
    assert live.peak == pytest.approx(predicted.needed(most or 32), rel=0.1)


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


@given(st.integers(1, 40), st.integers(1, 20), st.integers(1, 900))
def test_no_more_than_fits_in_as_few_slices_as_there_can_be(groups, group, fits):
    rows = groups * group
    at_once = whole_groups(rows, fits, group)
    assert 0 < at_once <= min(rows, fits)
    if fits >= group:
        assert at_once % group == 0
        assert -(-groups // (at_once // group)) == -(-groups // min(groups, fits // group))


MEMORY = GenerationMemory(cache=GIB // 1000, logits=GIB // 10, tokens=900, copy=2 * GIB)  # about 1 GiB a completion


@pytest.mark.parametrize(
    "room, most, level, advised",
    [
        (34.5, None, FINE, []),
        (20.5, None, LOOK, ["compact_max_rows: 16"]),
        (10.5, 16, LOOK, ["compact_max_rows: 8"]),
        (9.5, None, LOOK, ["compact_merge: false", "compact_max_rows: 8"]),
        (0.5, None, LOOK, ["max_completion_length"]),
    ],
)
def test_what_is_advised_for_32_completions_in_groups_of_8(room, most, level, advised):
    finding = generation_finding(MEMORY, room * GIB, 32, most, 8)
    assert finding.level == level
    assert all(part in finding.change for part in advised)
    assert bool(finding.change) == bool(advised)


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
    trainer = make_trainer(compact_generation="on", gradient_accumulation_steps=2)
    trained = sum(param.numel() * 4 for param in trainer.model.parameters() if param.requires_grad)
    (finding,) = generation_findings(trainer, 20)
    assert finding.values["room_gib"] * GIB == pytest.approx(800_000 - 2 * trained)
    # 16 completions of 26 tokens in 2 layers of 2 heads × 16, and 261 tokens of the vocabulary, in fp32.
    of_rows = 16 * (26 * 2 * 2 * 32 * 4 + 261 * 12)
    assert finding.values["needed_gib"] * GIB == pytest.approx(of_rows + trainer.compact.copy.bytes)
    assert generation_findings(make_trainer(compact_generation="off"), 20) == []
    (without,) = generation_findings(
        make_trainer(compact_generation="on", compact_max_rows=3, compact_merge=False), 20
    )
    assert without.values["needed_gib"] * GIB == pytest.approx(of_rows * 3 / 16)
