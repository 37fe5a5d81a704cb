"""Trials of families that are not listed, on a tiny model of the same class."""

import pytest
import torch
from packed_models import MOE, build, uneven
from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer

from trl_prorl import preflight
from trl_prorl.errors import InputError
from trl_prorl.fast import trial
from trl_prorl.fast.batch_cache import RoomyLayer
from trl_prorl.fast.lean_lora import Adapted
from trl_prorl.fast.packing import packed_logps
from trl_prorl.fast.trial import compare_packed, compare_samples, tiny_config, tiny_model, trial_obstacle


def tried(model):
    """What is found against packed rows, and against compact samples."""
    return [trial_obstacle(name, model) for name in ("shared_prompts", "compact")]


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("kind", ["olmo2", "starcoder2", "ernie4_5"])
def test_a_family_that_serves_is_found_to(kind, lora):
    model = build(kind)
    if lora:
        model = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear"))
    assert tried(model) == [None, None]


ADAPTERS = {
    "full": None,
    "biases of adapted layers": {"bias": "lora_only"},
    "all biases": {"bias": "all"},
    "biases of the adapter": {"lora_bias": True, "target_modules": ["q_proj", "v_proj"]},
    "magnitudes": {"use_dora": True},
    "a module": {"modules_to_save": ["lm_head"]},
    "embeddings": {"target_modules": ["embed_tokens", "q_proj", "down_proj"]},
    "a first layer alone": {"layers_to_transform": [0]},
}


def made(case):
    """A model with the parameters that a case trains."""
    model = uneven("qwen2", tie_word_embeddings=False)
    if ADAPTERS[case] is None:
        return model.eval()
    keys = {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, **{**keys, **ADAPTERS[case]}))
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, param in model.named_parameters():
            if "lora_" in name:  # a new adapter gives one of its factors no gradient
                param.add_(0.02 * torch.randn(param.shape, generator=generator))
    return model.eval()


@pytest.mark.parametrize("case", ADAPTERS)
def test_scores_and_gradients_of_what_is_trained_are_the_own_forward_s(case):
    assert compare_packed(made(case)) is None


# What the backward pass of an adapted layer returns, and the tensor whose gradient is then wrong.
LOST = {0: "layers.0.", 2: "base_layer.bias", 3: "lora_A", 4: "lora_B"}


@pytest.mark.parametrize("place", LOST)
@pytest.mark.parametrize("factor", [None, 2.0])
def test_a_gradient_that_is_lost_or_wrong_is_found(monkeypatch, place, factor):
    backward = Adapted.backward

    def wrong(ctx, gradient):
        found = list(backward(ctx, gradient))
        if found[place] is not None:
            found[place] = None if factor is None else found[place] * factor
        return tuple(found)

    monkeypatch.setattr(Adapted, "backward", wrong)
    answer = compare_packed(made("biases of adapted layers"))
    assert "the gradient of" in answer and LOST[place] in answer


@pytest.mark.parametrize("off", [1e-2, float("nan"), float("inf")])
def test_a_score_that_is_off_is_found(monkeypatch, off):
    monkeypatch.setattr(trial, "packed_logps", lambda *args: (packed_logps(*args)[0] + off, None))
    assert "in packed rows differ" in compare_packed(uneven("qwen2"))


def test_rows_that_are_mixed_up_are_found(monkeypatch):
    close_up = RoomyLayer.close_up
    mixed_up = lambda self, kept: close_up(self, kept._replace(movers=kept.movers - 1))  # noqa: E731
    monkeypatch.setattr(RoomyLayer, "close_up", mixed_up)
    assert "samples of Qwen2ForCausalLM differ" in compare_samples(build().eval())


def test_a_model_that_fails_is_found(monkeypatch):
    model = build("starcoder2")
    monkeypatch.setattr(type(model), "prepare_inputs_for_generation", lambda *args, **kwargs: 1 / 0)
    assert "(ZeroDivisionError" in trial_obstacle("compact", model)


def test_the_model_and_the_random_numbers_stay(make_trainer):
    model = get_peft_model(build("olmo2"), LoraConfig(r=2, target_modules="all-linear"))
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    modules = [(id(module), type(module), module.training) for module in model.modules()]
    state = torch.get_rng_state()
    tried(model)
    assert torch.equal(state, torch.get_rng_state())
    assert [(id(module), type(module), module.training) for module in model.modules()] == modules
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_a_tiny_model_has_every_kind_of_layer_and_no_more():
    types = ["full_attention"] * 12
    types[4] = "sliding_attention"
    sizes = {"num_hidden_layers": 12, "layer_types": types, "use_sliding_window": True, "sliding_window": 8}
    model = build("qwen2", hidden_size=256, vocab_size=3000, **sizes)
    config = tiny_model(model).config
    assert config.layer_types == types[:5]
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (5, 64, 512)
    assert (model.config.num_hidden_layers, model.config.hidden_size) == (12, 256)
    assert tiny_config(build("qwen2", num_hidden_layers=6).config, ()).num_hidden_layers == 2


@pytest.fixture
def unlisted(tiny_model):
    tokens = AutoTokenizer.from_pretrained(tiny_model)
    sizes = {"vocab_size": len(tokens), "pad_token_id": tokens.pad_token_id}
    return lambda kind, **keys: build(kind, **sizes, **keys)


def test_a_family_of_fast_models_is_served_where_the_trial_succeeds(run, make_trainer, unlisted, largest_difference):
    keys = {"lora": False, "max_steps": 2, "learning_rate": 1e-3}
    with pytest.raises(ValueError, match=r"pack_groups='on'.*fast_models: \[starcoder2\]"):
        make_trainer(model=unlisted("starcoder2"), pack_groups="on", **keys)
    # in float64, because Adam's first steps blow rounding up
    plain = run(model=unlisted("starcoder2").double(), **keys)
    packed = run(model=unlisted("starcoder2").double(), pack_groups="on", fast_models=["starcoder2"], **keys)
    assert packed.acceleration.packing.on
    assert 0.0 < largest_difference(plain, packed) < 1e-5


def test_a_family_that_fails_the_trial_is_not_served(make_trainer, unlisted, monkeypatch):
    monkeypatch.setattr(trial, "packed_logps", lambda *args: (packed_logps(*args)[0] + 0.1, None))
    keys = {"lora": False, "pack_groups": "on", "fast_models": ["starcoder2"]}
    with pytest.raises(ValueError, match="pack_groups='on'.*in packed rows differ"):
        make_trainer(model=unlisted("starcoder2"), **keys)


@pytest.mark.parametrize("kind", ["hunyuan_v1_dense", "hunyuan_v1_moe"])
def test_a_family_to_which_absolute_positions_matter_is_refused(run, unlisted, kind):
    """It normalises queries and keys after their rotation, and TRL scores it with the padding counted."""
    model = unlisted(kind, head_dim=8, **MOE)
    with torch.no_grad():
        for param in model.parameters():
            if param.dim() == 1:  # as initialised, norms commute with a rotation
                param.add_(0.3 * torch.randn_like(param))
    with pytest.raises(InputError, match=f"model_type='{kind}' is not supported"):
        run(model=model, lora=False, beta_old=0.1, max_steps=1)


def test_preflight_says_whether_it_could_be_tried(make_trainer, unlisted):
    def found(**keys):
        made = make_trainer(lora=False, **keys)
        return [finding for finding in preflight(made, prompts=2) if finding.what == "family of models"]

    (finding,) = found(model=unlisted("starcoder2"))
    assert "fast_models: [starcoder2]" in finding.change
    assert found(model=unlisted("starcoder2"), fast_models=["starcoder2"], fast=True) == []
    assert found() == []
