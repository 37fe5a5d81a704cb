"""Families of models, also with states and windows: packed rows against TRL, compact samples against `generate`."""

from functools import partial

import pytest
import torch
from compared_samples import sampled_difference
from emulated_graphs import emulate
from packed_models import MOE, SIZES, batch_of, build, needs_states, padded_logps, with_head
from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer, GenerationConfig, Qwen3_5Config, Qwen3_5ForConditionalGeneration

from trl_prorl.cli.prompts import pad_left
from trl_prorl.errors import InputError
from trl_prorl.fast import prefix
from trl_prorl.fast.compact import compact_sample
from trl_prorl.fast.families import listing_obstacle
from trl_prorl.fast.packing import packed_logps
from trl_prorl.fast.prefix import accept_prefixes
from trl_prorl.fast.recording import Recordings
from trl_prorl.supported import FAMILIES, LEARNED_POSITIONS, POSITIONS
from trl_prorl.upstream.positions import with_positions


DELTA = {
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "num_hidden_layers": 4,
}
MAMBA = {"mamba_n_heads": 8, "mamba_d_state": 16, "mamba_d_head": 8, "mamba_expand": 2}
GRANITE = {**MOE, "num_local_experts": 0, "shared_intermediate_size": 48, "position_embedding_type": "rope"}
EYES = {"hidden_size": 32, "intermediate_size": 48, "patch_size": 4, "depth": 1, "num_heads": 2, "out_hidden_size": 32}


def qwen3_5(attention="sdpa", **sizes):
    """A Qwen3.5 as its checkpoints have it: with a vision tower."""
    torch.manual_seed(0)
    eyes = {**EYES, "num_position_embeddings": 16}
    config = Qwen3_5Config(text_config={**SIZES, **DELTA, **sizes}, vision_config=eyes, tie_word_embeddings=True)
    config._attn_implementation = attention
    model = Qwen3_5ForConditionalGeneration(config)
    with torch.no_grad():
        for param in model.parameters():
            if param.dim() > 1:
                param.mul_(5.0)
    return model


# What a tiny model of each family is made of.
SIZES_OF = {
    "glm4": {"head_dim": 8},
    "ministral3": {"head_dim": 8},
    "qwen2_moe": MOE,
    "gemma": {"head_dim": 8},
    "gemma2": {"head_dim": 8, "sliding_window": 4},
    "gemma3_text": {"head_dim": 8, "num_hidden_layers": 7, "sliding_window": 8},
    "gemma4_text": {
        "head_dim": 8,
        "global_head_dim": 8,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "num_hidden_layers": 6,
        "sliding_window": 8,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": SIZES["vocab_size"],
    },
    "gpt2": {"num_key_value_heads": None, "intermediate_size": None, "n_inner": 48},
    "granite": {"attention_multiplier": 0.1},  # instead of head_dim ** -0.5
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], **MAMBA, **GRANITE},
    "lfm2": {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
    "mamba": {"state_size": 4},
    "mistral": {"sliding_window": 8},
    "mixtral": MOE,
    "qwen3": {"head_dim": 8},
    "qwen3_5_text": {**DELTA, "initializer_range": 0.015},
    "qwen3_moe": {"head_dim": 8, **MOE},
    "qwen3_next": {**DELTA, **MOE},
    "smollm3": {"num_hidden_layers": 4},  # every fourth layer has no rotary positions
}


def tiny(kind, attention=None):
    attention = attention or FAMILIES[kind].compact[0]
    if kind == "qwen3_5":
        return qwen3_5(attention)
    return build(kind, attention, **SIZES_OF.get(kind, {}))


def greedy_samples(model, lengths=(3, 9, 8, 4), copies=(0, 0, 1, 2, 2, 3), recordings=None, ending=8):
    """
    Greedy tokens of `generate` and of compact generation; rows end after different numbers of tokens, at every token
    that `ending` divides.
    """
    vocabulary = model.get_input_embeddings().weight.shape[0]
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(3, vocabulary, (length,), generator=generator).tolist() for length in lengths]
    ids, mask = pad_left(prompts, 0)
    copies = torch.tensor(copies)
    ends = list(range(0, vocabulary, ending))
    settings = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "disable_compile": True}
    settings = GenerationConfig(eos_token_id=ends, **settings)
    theirs = model.generate(input_ids=ids[copies], attention_mask=mask[copies], generation_config=settings)
    given = {"copies": copies, "recordings": recordings, "custom_generate": compact_sample}
    mine = model.generate(input_ids=ids, attention_mask=mask, generation_config=settings, **given)
    assert mine.recorded == (recordings is not None)
    return theirs, mine.ids


# One of each kind of attention and state.
KINDS = ("qwen2", "gemma3_text", "qwen3_5_text", "lfm2")


def served(acceleration, quick=FAMILIES):
    """
    Each family that is listed for an acceleration, with each implementation of attention. Families outside of `quick`
    are slow, and second implementations outside of `KINDS`.
    """
    cases = []
    for kind, family in FAMILIES.items():
        for place, attention in enumerate(getattr(family, acceleration)):
            marks = [needs_states] if family.has_state else []
            if kind not in quick or (place > 0 and kind not in KINDS):
                marks.append(pytest.mark.slow)
            cases.append(pytest.param(kind, attention, marks=marks))
    return cases


def gradients(model, value):
    trained = {name: param for name, param in model.named_parameters() if param.requires_grad}
    found = torch.autograd.grad(value, list(trained.values()), allow_unused=True)
    return dict(zip(trained, found, strict=True))


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("kind, attention", served("shared_prompts"))
def test_values_and_gradients_are_trls(kind, attention, lora, monkeypatch):
    """Prompts of unequal length, one of them a single token; completions that end in different blocks of queries."""
    monkeypatch.setattr(prefix, "QUERY_BLOCK", 16)
    model = with_head(tiny(kind, attention))
    if lora:
        adapter = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
        model = get_peft_model(model, adapter)
        with torch.no_grad():
            for name, param in model.named_parameters():
                if "lora_B" in name:
                    param.normal_(std=0.1)
    assert listing_obstacle(model, "shared_prompts") is None
    accept_prefixes(model)
    batch = batch_of([(12, [70, 3, 33]), (5, [20, 16]), (1, [9, 40])], masked=(1,))
    logps, entropies = packed_logps(model, *batch, compute_entropy=True)
    expected, expected_entropies = padded_logps(model, *batch, compute_entropy=True)
    torch.testing.assert_close(logps, expected, atol=2e-5, rtol=0)
    torch.testing.assert_close(entropies, expected_entropies, atol=2e-5, rtol=0)
    weights = torch.randn(logps.shape, generator=torch.Generator().manual_seed(1))
    ours = gradients(model, (logps * weights).sum())
    theirs = gradients(model, (expected * weights).sum())
    largest = max(gradient.norm() for gradient in theirs.values() if gradient is not None)
    for name, gradient in theirs.items():
        if gradient is None:
            assert ours[name] is None, name
        else:
            assert (ours[name] - gradient).norm() <= 1e-4 * gradient.norm() + 1e-6 * largest, name


@pytest.mark.parametrize("kind, attention", served("compact"))
def test_compact_samples_are_those_of_generate(kind, attention):
    model = tiny(kind, attention).eval()
    assert model.config.model_type == kind
    assert listing_obstacle(model, "compact") is None
    assert torch.equal(*greedy_samples(model))
    assert sampled_difference(model) < 1e-3


@pytest.mark.parametrize("kind, attention", served("graphed", KINDS))
def test_a_token_s_forward_can_be_repeated(kind, attention, monkeypatch):
    """Across the end of a span of 128 tokens, after rows have ended, and in later batches."""
    made = emulate(monkeypatch)
    model = tiny(kind, attention).eval()
    assert listing_obstacle(model, "graphed") is None
    recordings = Recordings()
    keys = {"copies": [row % 18 for row in range(26)], "recordings": recordings, "ending": 3}
    lengths = (3, 126, 8, 4, 60, 30) * 3
    assert torch.equal(*greedy_samples(model, lengths, **keys))
    assert {end for _, end in recordings._made} == {128, 256}
    assert torch.equal(*greedy_samples(model, (126, 5, 9, 3, 77, 6) * 3, **keys))
    number = len(made)
    assert torch.equal(*greedy_samples(model, lengths, **keys))
    assert len(made) == number  # replayed


@pytest.mark.parametrize("kind", POSITIONS)
def test_positions_that_are_listed_do_not_depend_on_the_longest_row(kind):
    more = {"linear": {"factor": 2.0}, "yarn": {"factor": 4.0, "original_max_position_embeddings": 32}}
    more["llama3"] = more["yarn"] | {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    model = build("llama", rope_parameters={"rope_type": kind, "rope_theta": 10000.0, **more.get(kind, {})})
    assert sampled_difference(model) < 1e-3
    model = with_head(model)
    batch = batch_of([(40, [70, 3]), (5, [20, 16])])
    torch.testing.assert_close(packed_logps(model, *batch)[0], padded_logps(model, *batch)[0], atol=2e-5, rtol=0)


def test_a_window_that_attention_does_not_get_is_refused():
    """A comparison of a few tokens would not show it."""
    model = with_head(build("mistral", sliding_window=512))
    batch = batch_of([(6, [5, 7])])
    packed_logps(model, *batch)
    model.config.layer_types = ["sliding_attention"] * 2
    model.config.sliding_window = None  # this is what the attention passes on
    with pytest.raises(ValueError, match="window"):
        packed_logps(model, *batch)


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_type_that_is_listed_is_scored_as_by_its_own_forward(kind):
    model = with_head(tiny(kind)).eval()
    ids, mask, keep = batch_of([(5, [20, 16]), (9, [12])])  # the first prompt is padded on the left
    found = padded_logps(with_positions(model) if kind in LEARNED_POSITIONS else model, ids, mask, keep)[0]
    for row, its_mask, logps in zip(ids, mask, found, strict=True):
        alone = row[its_mask == 1]
        with torch.no_grad():
            own = model(input_ids=alone[None]).logits[0, :-1].log_softmax(-1)
        expected = own.gather(-1, alone[1:, None])[:, 0]
        scored = logps[its_mask[-keep:] == 1]
        torch.testing.assert_close(scored, expected[-len(scored) :], atol=2e-5, rtol=0)


NO_DROPOUT = dict.fromkeys(["attn_pdrop", "resid_pdrop", "embd_pdrop", "dropout", "attention_dropout"], 0.0)
NO_DROPOUT |= dict.fromkeys(["activation_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob"], 0.0)
LOCAL = {"num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 8}
LEARNED = {
    "gpt2": partial(build, "gpt2", **SIZES_OF["gpt2"]),
    "gpt_bigcode": partial(build, "gpt_bigcode", num_key_value_heads=1, n_inner=48, **NO_DROPOUT),
    "gpt_neo": partial(build, "gpt_neo", "eager", **LOCAL),
    "xglm": partial(build, "xglm", "eager", num_layers=2, attention_heads=2, ffn_dim=48, **NO_DROPOUT),
    "biogpt": partial(build, "biogpt", **NO_DROPOUT),
}


@pytest.mark.parametrize("kind", LEARNED_POSITIONS)
def test_a_type_with_learned_positions_is_trained_as_it_is_sampled(
    make_trainer, tiny_model, kind, monkeypatch, tmp_path
):
    tokens = AutoTokenizer.from_pretrained(tiny_model)
    sizes = {"vocab_size": len(tokens), "pad_token_id": tokens.pad_token_id}
    model = LEARNED[kind](**sizes)
    model.save_pretrained(tmp_path / "model")
    model.config._name_or_path = str(tmp_path / "model")
    trainer = make_trainer(model=model, lora=False, beta=0.1, beta_old=0.1, disable_dropout=True)
    ids, mask, keep = batch_of([(5, [20, 16]), (9, [12])])
    prompts = ids[:, :-keep]
    keys = {"attention_mask": mask[:, :-keep], "max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    keys |= {"output_logits": True, "return_dict_in_generate": True}
    drawn = trainer.model.eval().generate(input_ids=prompts, **keys)
    logits = torch.stack(drawn.logits, dim=1)
    completions = drawn.sequences[:, prompts.shape[1] :]
    expected = logits.log_softmax(-1).gather(-1, completions[..., None])[..., 0]
    whole = torch.cat([mask[:, :-keep], torch.ones_like(completions)], dim=1)
    rows = (drawn.sequences, whole, completions.shape[1])
    for model in (trainer.model, trainer.ref_model):
        found = trainer._get_per_token_logps_and_entropies(model, *rows)[0]
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)
    trainer._learns_positions = False  # as with an unknown type
    with pytest.raises(InputError, match=f"'{kind}'.* differs .* nats"):
        trainer.train()


CAPPED = {"recurrent_gemma": {"block_types": ["recurrent", "attention"], "lru_width": 32, "attention_window_size": 64}}


@pytest.mark.parametrize("cap", [30.0, 3.0])
@pytest.mark.parametrize("lora", [False, True])
def test_a_head_that_does_more_than_trls_is_refused(make_trainer, tiny_model, cap, lora):
    tokens = AutoTokenizer.from_pretrained(tiny_model)
    sizes = {"vocab_size": len(tokens), "pad_token_id": tokens.pad_token_id, "logits_soft_cap": cap}
    model = build("recurrent_gemma", attention=None, **CAPPED["recurrent_gemma"], **sizes)
    with pytest.raises(InputError, match=r"'recurrent_gemma'.* differs .* nats") as caught:
        make_trainer(model=model, lora=lora, beta_old=0.1).train()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("from_folder", [True, False])
@pytest.mark.parametrize("keys", [{"fast": True}, {}], ids=["fast", "as TRL"])
def test_all_linear_leaves_a_vision_tower_alone(make_trainer, tiny_model, tmp_path, from_folder, keys):
    """But for a run that is TRL's."""
    tokens = AutoTokenizer.from_pretrained(tiny_model)
    model = qwen3_5(vocab_size=len(tokens), pad_token_id=tokens.pad_token_id)
    if from_folder:
        model.save_pretrained(tmp_path / "qwen")
        model = str(tmp_path / "qwen")
    adapter = LoraConfig(r=2, target_modules="all-linear")
    made = make_trainer(model=model, lora=False, trainer_kwargs={"peft_config": adapter}, **keys)
    trained = [name for name, param in made.model.named_parameters() if param.requires_grad]
    assert any("language_model" in name for name in trained)
    assert any(".visual." in name for name in trained) == (not keys)
    assert adapter.exclude_modules is None
