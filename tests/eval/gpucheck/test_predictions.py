"""Predictions for a card: sizes worked out by hand, and counted by torch and by the packing itself as the controls."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen2Config, Qwen2ForCausalLM

from trl_prorl.eval import gpu_check
from trl_prorl.eval.gpucheck import predicted_page
from trl_prorl.eval.gpucheck.cards import CARDS, Card, find_card
from trl_prorl.eval.gpucheck.counts import (
    ARMS,
    RECIPE_MODEL,
    SAMPLED_ROWS,
    TOKENS_BETWEEN_LOOKS,
    Counts,
    Line,
    read_counts,
)
from trl_prorl.eval.gpucheck.predictions import (
    LARGE,
    QWEN,
    RECIPE,
    Forward,
    Prediction,
    Shape,
    Work,
    bound,
    forward_flops,
    packed_forward,
    padded_forward,
    update_flops,
)
from trl_prorl.eval.readiness.memory import generation_memory
from trl_prorl.rollout.compact import CHECK_EVERY
from trl_prorl.scoring.packing import Plan


ROOT = Path(__file__).parents[3]
COUNTED = ROOT / predicted_page.COUNTED
TINY = Shape(hidden=4, layers=2, heads=2, key_value_heads=1, intermediate=6, vocabulary=10, rank=1)
# In two layers 240 weights: 16 + 8 + 8 + 16 of attention, and 3 · 24 of the MLP; 116 in the adapter.


# ------------------------------------------------------------------------------------------------- bytes and FLOP


def test_the_sizes_of_qwen():
    assert QWEN.layer_weights == 28 * (2 * 1536 * 1536 + 2 * 1536 * 256 + 3 * 1536 * 8960)
    assert QWEN.head_weights == 151_936 * 1536
    assert QWEN.parameters == 1_543_714_304  # as its model card has it, 1.54 B
    assert QWEN.adapter_weights == 28 * 16 * (2 * 3072 + 2 * 1792 + 3 * 10_496) == 18_464_768
    assert QWEN.cache_bytes(2) == 28 * 2 * 2 * 128 * 2 == 28_672
    assert QWEN.attention_flops(1) == 4 * 28 * 12 * 128


def small_model(checkpointing: bool = False):
    """A Qwen2 with LoRA around its linear layers, whose attention is made of products that torch counts."""
    config = Qwen2Config(
        vocab_size=50,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    model = Qwen2ForCausalLM(config)
    parameters = model.num_parameters()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    return get_peft_model(model, LoraConfig(r=4, target_modules="all-linear")).train(), parameters


SMALL = Shape(hidden=24, layers=3, heads=4, key_value_heads=2, intermediate=40, vocabulary=50, rank=4)


def test_sizes_are_those_of_a_model():
    model, parameters = small_model()
    assert SMALL.parameters == parameters
    assert SMALL.adapter_weights == sum(param.numel() for param in model.parameters() if param.requires_grad)


def test_flops_are_those_that_torch_counts():
    """Without a mask for what comes later, as torch counts: 7 queries with 7 keys each."""
    ids = torch.arange(7)[None]
    model, _ = small_model()
    with FlopCounterMode(display=False) as counter:
        model(ids)
    assert counter.get_total_flops() == forward_flops(SMALL, Forward(tokens=7, pairs=49, scored=7))
    model, _ = small_model(checkpointing=True)
    with FlopCounterMode(display=False) as counter:
        model.get_base_model().model(ids).last_hidden_state.sum().backward()
    # The second forward of a layer ends before its last product, that of down_proj's LoRA.
    saved = 2 * 7 * SMALL.layers * SMALL.rank * SMALL.hidden
    assert counter.get_total_flops() == update_flops(SMALL, Forward(tokens=7, pairs=49, scored=0)) - saved


def test_a_head_counts_three_times_in_an_update():
    """Its logits, these once more, and the gradient of its states."""
    with_head = update_flops(TINY, Forward(0, 0, 5))
    assert with_head == 3 * 2 * 40 * 5


def test_a_packed_row_beside_padded_rows():
    """Two completions x y of a prompt a b c: `a b | c x y | c x y` for `a b c x y` twice."""
    work = Work("", prompts=1, completions=2, micro_batch=2, prompt_tokens=3, completion_tokens=2)
    assert padded_forward(work) == Forward(tokens=10, pairs=2 * 15, scored=4)
    # a: 1, b: 2; c, x, y of each: 3, 4, 5.
    assert packed_forward(work) == Forward(tokens=8, pairs=3 + 2 * 12, scored=4)
    assert forward_flops(TINY, padded_forward(work)) == 2 * (240 + 116) * 10 + 4 * 2 * 4 * 30 + 2 * 40 * 4
    assert forward_flops(TINY, packed_forward(work)) == 2 * (240 + 116) * 8 + 4 * 2 * 4 * 27 + 2 * 40 * 4


@pytest.mark.parametrize("micro_batch, groups", [(2, 1), (4, 1), (8, 2)])
def test_a_packed_row_has_the_tokens_of_the_packing(micro_batch, groups):
    work = Work("", prompts=2, completions=4, micro_batch=micro_batch, prompt_tokens=5, completion_tokens=3)
    prompts = torch.arange(groups).repeat_interleave(micro_batch // groups)[:, None].expand(-1, 5)
    ids = torch.cat([prompts, torch.ones(micro_batch, 3, dtype=torch.long)], dim=1)
    plan = Plan.of(ids, torch.ones_like(ids), 3)
    (call,) = plan.calls
    found = packed_forward(work)
    assert found.tokens == call.inputs["input_ids"].numel()
    assert found.scored == call.scored.numel()


# ------------------------------------------------------------------------------------------------------- counts


def test_a_line_through_two_depths():
    table = {
        ("recipe, 2 layers", "A", "token"): {"launches": 20},
        ("recipe, 4 layers", "A", "token"): {"launches": 26},
        ("recipe, 2 layers", "A", "micro-batch, first"): {"launches": 12},
        ("recipe, 2 layers", "A", "micro-batch, later"): {"launches": 10},
        ("recipe, 4 layers", "A", "micro-batch, first"): {"launches": 14},
        ("recipe, 4 layers", "A", "micro-batch, later"): {"launches": 12},
        ("recipe, 2 layers", "A", "scoring"): {"launches": 8},
        ("recipe, 4 layers", "A", "scoring"): {"launches": 12},
    }
    (arm,) = (arm for arm in ARMS if arm.name == "A")
    counts = Counts(table, arm)
    assert counts.token("launches") == Line(14, 3)
    assert counts.token("launches").at(28) == 98
    assert counts.micro_batch("launches") == Line(9, 1)
    assert counts.scorings("launches") == [Line(2, 1)]  # of two forwards one


def test_bytes_say_how_often_a_token_reads_the_cache_and_the_logits():
    """16 rows, 256 bytes of cache in a layer, and 2 of a mask; 1,024 more logits, and as many rows of the head."""
    table = {
        ("recipe, 2 layers", "plain", "token, one longer"): {"bytes": 2 * 16 * (3 * 256 + 2)},
        ("recipe, 4 layers", "plain", "token, one longer"): {"bytes": 4 * 16 * (3 * 256 + 2)},
        ("recipe, 2 layers", "plain", "token"): {"bytes": 7000},
        ("recipe, 2 layers, 1024 tokens more", "plain", "token"): {"bytes": 7000 + 1024 * (16 * 20 + 2 * 48)},
    }
    (arm,) = (arm for arm in ARMS if arm.name == "plain")
    counts = Counts(table, arm)
    assert counts.cache_passes == 3
    assert counts.logit_bytes == 20


def test_what_is_known_of_the_counted_cases():
    group = RECIPE_MODEL["num_attention_heads"] // RECIPE_MODEL["num_key_value_heads"]
    assert group == QWEN.heads // QWEN.key_value_heads
    assert SAMPLED_ROWS == 16
    assert "two micro-batches of 8" in (ROOT / "tests" / "device" / "whole_steps.py").read_text()
    assert TOKENS_BETWEEN_LOOKS == CHECK_EVERY


def test_an_optimizer_asks_as_much_at_any_depth():
    table = read_counts(COUNTED)
    for arm in ("TRL, control", "plain", "A"):
        shallow = table["LoRA bf16", arm, "step"]
        deep = table["LoRA bf16, 4 layers", arm, "step"]
        assert shallow["launches"] == deep["launches"]
        assert abs(shallow["waits"] - deep["waits"]) <= 1


# -------------------------------------------------------------------------------------------------- a prediction


def test_the_longest_of_three_times():
    assert bound(1000, 6e6, 6e9, bandwidth=1e9, peak=1e12) == (6e-3, "launches")
    assert bound(1000, 7e6, 6e9, bandwidth=1e9, peak=1e12) == (7e-3, "bandwidth")
    assert bound(1000, 7e6, 8e9, bandwidth=1e9, peak=1e12) == (8e-3, "compute")


ROUND = Card("a card", "x", bandwidth=1e6, peak=1e9, memory=1, source="", weight_bytes=2)
WORK = Work("", prompts=2, completions=4, micro_batch=4, prompt_tokens=3, completion_tokens=2)


class Flat(Counts):
    """An arm's counts by hand: the same at any depth."""

    def line(self, column, *stages, arm=None):
        return Line({"launches": {"token": 10}.get(stages[0], 100), "waits": 5}[column], 0)

    def step(self, column):
        return Line(7, 0)

    cache_passes = 1
    logit_bytes = 20


def predict(name: str, card: Card = ROUND) -> Prediction:
    (arm,) = (arm for arm in ARMS if arm.name == name)
    return Prediction(card, TINY, WORK, Flat({}, arm))


def test_a_step_by_hand():
    """
    240 weights of layers and 40 of the head, 16 biases, 20 of norms: 632 bytes. A token of 8 rows at length 4: 32 · 16
    bytes of cache, 8 · 10 · 20 of logits.
    """
    found = predict("A")
    assert TINY.parameters == 240 + 40 + 16 + 20
    assert TINY.cache_bytes(2) == 16
    assert found.token == (pytest.approx((632 + 512 + 1600) / 1e6), "bandwidth")
    assert found.prefill == (pytest.approx(632e-6), "bandwidth")  # 100 launches are 600
    assert found.scorings == [(pytest.approx(632e-6), "bandwidth")]
    assert found.micro_batch == (pytest.approx(3 * 632e-6), "bandwidth")
    assert found.optimizer == (pytest.approx(28 * 116 / 1e6), "bandwidth")
    # A batch is used for two steps: a half of prefill, one token, and two forwards; two micro-batches.
    assert found.seconds("generation") == pytest.approx((632e-6 + 2744e-6) / 2)
    assert found.seconds("scoring") == pytest.approx(632e-6)
    assert found.seconds("update") == pytest.approx(2 * 1896e-6 + 3248e-6)
    assert found.step == pytest.approx(sum(found.seconds(stage) for stage in ("generation", "scoring", "update")))
    assert found.launch_share == 0
    # Of the batch 5, a look at one of 16 tokens, and 2.5 for each of two forwards; of the step 2 · 5 + 7.
    assert found.waits == pytest.approx((5 + 1 / 16 + 2 * 2.5) / 2 + 17)


def test_what_differs_between_arms():
    plain = predict("plain")
    trl = predict("TRL with a reference")
    assert plain.scorings == []
    assert len(trl.scorings) == 2  # π_old, and the reference
    assert trl.forward == padded_forward(WORK)
    assert plain.forward == packed_forward(WORK)
    # TRL's adapter is not merged: 116 weights in fp32.
    assert trl.token.seconds - plain.token.seconds == pytest.approx(4 * 116 / 1e6)
    assert (predict("A").held - plain.held) * 2**30 == pytest.approx(4 * 116)  # the reference's adapter
    assert plain.held * 2**30 == pytest.approx(632 + 12 * 116)  # its weights and two moments, in fp32


def test_the_launches_of_a_fast_card():
    fast = Card("a card", "x", bandwidth=1e12, peak=1e15, memory=1, source="")
    found = predict("plain", fast)
    assert found.token == (60e-6, "launches")
    assert found.launch_share == pytest.approx(1)
    assert found.step == pytest.approx(6e-6 * ((100 + 10) / 2 + 2 * 100 + 7))


def test_memory_by_hand():
    found = predict("plain")
    # Weights and adapter, 8 rows of 5 tokens in the cache, 8 · 10 logits of 2 + 4 + 4 bytes, and the merged layers.
    of_batch = 40 * 16 + 800 + 480
    assert found.generation_memory * 2**30 == pytest.approx(632 + 4 * 116 + of_batch)
    # Two moments and a gradient of the adapter; a micro-batch of one prompt and four completions: 2 + 4 · 3 tokens;
    # two layers, and 6 · 4 + 4 · 6 once more.
    assert found.update_memory * 2**30 == pytest.approx(632 + 16 * 116 + 14 * 2 * (2 * 4 + 24 + 24))
    assert found.memory == found.update_memory
    # After an update a generation has the moments beside it, and no gradient.
    small = replace(found, work=replace(WORK, micro_batch=1))
    assert small.memory * 2**30 == pytest.approx(632 + 12 * 116 + of_batch)
    config = Qwen2Config(
        vocab_size=10, hidden_size=4, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1
    )
    of_preflight = generation_memory(config, torch.bfloat16, tokens=5, copy=480).needed(8)
    assert of_preflight == of_batch


def test_a_card_without_bf16():
    """Its weights are in fp32, and rollouts multiply in fp32, too."""
    old = Card("old", "x", bandwidth=1e6, peak=1e9, memory=1, source="", weight_bytes=4, sampling_peak=1e3)
    found = predict("plain", old)
    assert found.token.limit == "compute"
    assert found.token.seconds == pytest.approx(8 * (2 * 280 + 4 * 2 * 4 * 4) / 1e3)
    # Two prompts of 3 tokens, whose last ones are scored; each sees 1, 2 and 3.
    assert found.prefill == (pytest.approx((2 * 240 * 6 + 4 * 2 * 4 * 12 + 2 * 40 * 2) / 1e3), "compute")
    assert found.micro_batch == (pytest.approx(6 * 632e-6), "bandwidth")


@pytest.mark.parametrize(
    "device, name",
    [
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA A100-SXM4-80GB", "A100 80 GB SXM"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA A100-SXM4-40GB", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("CPU, x86_64", None),
    ],
)
def test_a_card_by_its_driver_s_name(device, name):
    card = find_card(device)
    assert (card and card.name) == name


# ------------------------------------------------------------------------------------------------------ the page


def test_the_page_has_what_follows_from_the_counts():
    head, _, written = (ROOT / predicted_page.PAGE).read_text().partition(predicted_page.MARK)
    expected = predicted_page.tables(read_counts(COUNTED))
    assert written.strip() == expected.strip(), "if that is what you want: trl-prorl gpu-check --predict"
    assert head.count("different objective") == 1


def test_the_tables_have_every_card_and_arm():
    written = predicted_page.tables(read_counts(COUNTED))
    for work in (RECIPE, LARGE):
        _, _, of_work = written.partition(f"### {work.title}")
        _, _, *rows = (line for line in of_work.partition("###")[0].splitlines() if line.startswith("| "))
        assert [row.split(" | ")[:2] for row in rows] == [
            [f"| {card.name}", arm.name] for card in CARDS for arm in ARMS
        ]


def test_the_command_writes_the_page(tmp_path, monkeypatch, capsys):
    page = tmp_path / predicted_page.PAGE
    page.parent.mkdir(parents=True)
    page.write_text(f"# A page\n\n{predicted_page.MARK}\nold")
    counted = tmp_path / predicted_page.COUNTED
    counted.parent.mkdir(parents=True)
    monkeypatch.setattr(gpu_check, "ROOT", tmp_path)
    assert gpu_check.main(["--predict"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: --predict: {counted} is missing")
    counted.write_bytes(COUNTED.read_bytes())
    assert gpu_check.main(["--predict"]) == 0
    assert page.read_text().startswith(f"# A page\n\n{predicted_page.MARK}\n\n## The cards\n")
    assert "old" not in page.read_text()
