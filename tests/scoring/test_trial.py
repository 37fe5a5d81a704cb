"""Trials by the first layers: which ones stay, and what they must still find."""

import pytest
import torch
from packed_models import build
from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer

from trl_prorl.fast.trial import on_trial


LAYERS = 6


def decoder(**keys):
    return build(num_hidden_layers=LAYERS, head_dim=8, **keys)


def kept(model):
    """How many of the layers stay."""
    with on_trial(model, first_layers=True) as left_out:
        return LAYERS - left_out


def leaks_from_other_tokens(module, args, output):
    """A hook by which every token reads the whole row, so that a packed row gives other values than a padded one."""
    return output + output.mean(dim=1, keepdim=True)


def reads_the_number_of_rows(module, args, output):
    """A hook by which a completion depends on those that are sampled beside it."""
    return output * len(output)


def replace_forward(layer):
    usual = layer.forward
    layer.forward = lambda *args, **keys: usual(*args, **keys)


def set_attribute(layer):
    layer.self_attn.scaling = 0.5


def replace_class(layer):
    class Other(type(layer.mlp)):
        pass

    layer.mlp.__class__ = Other


CHANGES = {
    "hook": lambda layer: layer.mlp.register_forward_hook(leaks_from_other_tokens),
    "hook before": lambda layer: layer.mlp.register_forward_pre_hook(lambda module, args: None),
    "forward": replace_forward,
    "setting": set_attribute,
    "class": replace_class,
    "dtype": lambda layer: layer.mlp.to(torch.bfloat16),
    "device": lambda layer: layer.mlp.to("meta"),
    "training": lambda layer: layer.mlp.up_proj.weight.requires_grad_(False),
    "no bias": lambda layer: setattr(layer.self_attn.q_proj, "bias", None),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("place", [3, 5])
def test_the_first_layers_reach_to_the_last_of_another_kind(change, place):
    model = decoder()
    assert kept(model) == 2
    change(model.model.layers[place])
    # The next layer is one of the usual ones, and was there before.
    assert kept(model) == place + 1


def test_kinds_of_attention_that_only_the_configuration_names_count():
    types = ["full_attention"] * LAYERS
    types[4] = "sliding_attention"
    model = decoder(layer_types=types, use_sliding_window=True, sliding_window=8)
    for layer in model.model.layers:  # as in architectures that keep it in the configuration alone
        layer.self_attn.layer_type = layer.self_attn.sliding_window = None
    assert kept(model) == 5


def test_adapters_of_some_layers_count():
    config = LoraConfig(r=4, target_modules=["q_proj"], layers_to_transform=[0, 1, 2, 3])
    assert kept(get_peft_model(decoder(), config)) == 5
    assert kept(get_peft_model(decoder(), LoraConfig(r=4, target_modules=["q_proj"]))) == 2
    ranks = LoraConfig(r=4, target_modules=["q_proj"], rank_pattern={"layers.3.self_attn.q_proj": 8})
    assert kept(get_peft_model(decoder(), ranks)) == 4


def test_a_model_whose_layers_are_not_found_keeps_all():
    model = decoder()
    model.another_list = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(LAYERS))
    assert kept(model) == LAYERS
    model.another_list = None
    model.config.num_hidden_layers = 7
    assert kept(model) == LAYERS


def of_tokenizer(tiny_model):
    tokens = AutoTokenizer.from_pretrained(tiny_model)
    return decoder(vocab_size=len(tokens), pad_token_id=tokens.pad_token_id)


def test_making_a_trainer_computes_the_later_layers_once(make_trainer, tiny_model):
    model = of_tokenizer(tiny_model)
    numbers = [0] * LAYERS

    def count(layer, args, output):
        numbers[layer.self_attn.layer_idx] += 1

    for layer in model.model.layers:
        layer.register_forward_hook(count)
    made = make_trainer(model=model, fast=True)
    assert made.acceleration.packing.on
    assert made.acceleration.generation.on
    assert made.compact.merged.on
    # Once to see whether a forward draws random numbers; the trials take some twenty forwards.
    assert numbers[2:] == [1, 1, 1, 1]
    assert numbers[0] == numbers[1] > 15


@pytest.mark.parametrize(
    "key, spoil, said",
    [
        (
            "pack_groups",
            lambda layer: layer.mlp.register_forward_hook(leaks_from_other_tokens),
            "in packed rows differ",
        ),
        (
            "compact_generation",
            lambda layer: layer.mlp.register_forward_hook(reads_the_number_of_rows),
            "differ from those of generate",
        ),
        ("compact_merge", lambda layer: replace_forward(layer.self_attn), "model.layers.4.self_attn is replaced"),
    ],
)
def test_a_late_layer_that_does_not_serve_is_found(make_trainer, tiny_model, key, spoil, said):
    model = of_tokenizer(tiny_model)
    spoil(model.model.layers[4])
    made = make_trainer(model=model, pack_groups="auto", compact_generation="auto")
    choices = {"pack_groups": made.acceleration.packing, "compact_generation": made.acceleration.generation}
    choice = choices[key] if key in choices else made.compact.merged
    assert not choice.on
    assert said in choice.reason
