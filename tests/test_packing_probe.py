"""Whether packing changes a model's numbers, asked of the model itself."""

import random
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_packing import MOE, build, padded_logps, with_adapter, with_head
from transformers import AutoModelForCausalLM, AutoTokenizer

from eval.run_folder.reading import read_env
from trl_prorl.embedded.shipped import embedded_model
from trl_prorl.launch import acceleration
from trl_prorl.scoring import packing_probe
from trl_prorl.scoring.packing import packed_logps, why_not
from trl_prorl.scoring.packing_probe import probe, tokens, unequal_rows


def uneven(kind, **keys):
    """A model whose norms and biases are not what they are initialised to, as after training."""
    model = build(kind, head_dim=8, sliding_window=None, **(MOE if kind.endswith(("moe", "mixtral")) else {}), **keys)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for param in model.parameters():
            if param.dim() == 1:
                param.add_(0.3 * torch.randn(param.shape, generator=generator))
    return with_head(model)


def probed(model, precision="fp32", packed=packed_logps):
    autocast = partial(torch.autocast, "cpu", torch.bfloat16) if precision == "autocast" else nullcontext
    if precision == "bf16":
        model.to(torch.bfloat16)
    return probe(
        model,
        model.get_input_embeddings().weight.shape[0],
        lambda *batch: padded_logps(model, *batch, autocast=autocast)[0],
        lambda *batch: packed(model, *batch, autocast=autocast)[0],
        torch.bfloat16 if precision == "autocast" else None,
    )


def test_the_trained_model_that_comes_with_the_package_is_let_pass():
    """It shows how positions round: a short prompt that padding moves to position 60 changes by 3e-5 nats a token."""
    model = with_head(AutoModelForCausalLM.from_pretrained(embedded_model(), dtype="float32"))
    assert probed(model) is None
    moved = lambda model, ids, *rest, **keys: packed_logps(model, ids.flip(0), *rest, **keys)  # noqa: E731
    assert "differ" in probed(model, packed=moved)


PRECISIONS = pytest.mark.parametrize("precision", ["fp32", "autocast", "bf16"])


@PRECISIONS
@pytest.mark.parametrize("kind", ["qwen2", "llama", "qwen3", "gemma", "granite", "phi3", "qwen3_moe", "mixtral"])
def test_rounding_alone_is_let_pass(kind, precision):
    assert probed(uneven(kind), precision) is None


@PRECISIONS
@pytest.mark.parametrize("kind", ["hunyuan_v1_dense", "hunyuan_v1_moe"])
def test_a_model_to_which_absolute_positions_matter_is_found_by_its_numbers_and_known_before(kind, precision):
    """As initialised, norms commute with a rotation."""
    answer = probed(uneven(kind), precision)
    assert "in packed rows differ from those in padded rows by 0." in answer and "\n" not in answer
    model = build(kind, head_dim=8, **MOE)
    assert "normalises queries and keys after their rotation" in why_not(model)
    assert probed(with_head(model), precision) is None


@pytest.mark.parametrize(
    "precision, off",
    [("fp32", 1e-3), ("autocast", 0.1), ("bf16", 0.1), ("fp32", float("nan")), ("fp32", float("inf"))],
)
def test_a_change_beyond_rounding_is_found(precision, off):
    """By a factor of about ten of what these precisions can show, or not finite."""
    shifted = lambda *args, **keys: (packed_logps(*args, **keys)[0] + off, None)  # noqa: E731
    assert "differ" in probed(uneven("qwen2"), precision, shifted)


@pytest.mark.parametrize("fails", [False, True])
def test_no_random_number_is_drawn_and_no_mode_is_left_changed(fails):
    model = with_adapter(uneven("qwen2", attention_dropout=0.5), lora_dropout=0.5)
    model.get_submodule("base_model.model.model.layers.0").eval()  # a part that somebody froze
    modes = {name: module.training for name, module in model.named_modules()}
    before = {name: value.clone() for name, value in model.state_dict().items()}

    seen = []

    def packed(*args, **kwargs):
        seen.append([module.training for module in model.modules()])
        torch.rand(3)  # a model that draws whatever the mode
        if fails:
            raise KeyError("no such thing")
        return packed_logps(*args, **kwargs)

    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    answer = probed(model, packed=packed)
    assert (answer is not None) == fails and len(seen) == 1 and not any(seen[0])
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]
    assert modes == {name: module.training for name, module in model.named_modules()}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(param.grad is None for param in model.parameters())


def test_the_rows_are_padded_as_trl_pads_them():
    ids, mask, keep = unequal_rows(1000)
    prompts, completions = mask[:, :-keep], mask[:, -keep:]
    assert prompts.sum(1).tolist() == [3, 3, 61, 61, 8, 8] and completions.sum(1).tolist() == [6, 2, 5, 1, 4, 6]
    assert (prompts.diff() >= 0).all() and (completions.diff() <= 0).all()
    for first in (0, 2, 4):  # one prompt, two completions
        assert torch.equal(ids[first, :-keep], ids[first + 1, :-keep])
        assert not torch.equal(ids[first, -keep:], ids[first + 1, -keep:])
    assert len(set(tokens(200, 1000).tolist())) > 150 and int(tokens(5000, 7).max()) == 6


def test_auto_falls_back_and_on_refuses_what_the_probe_finds(run, make_trainer, tiny_model, largest_difference):
    tokens = AutoTokenizer.from_pretrained(tiny_model)
    sizes = {"vocab_size": len(tokens), "pad_token_id": tokens.pad_token_id, "head_dim": 8}
    keys = {"lora": False, "max_steps": 2}
    with pytest.raises(ValueError, match="pack_groups='on' is not possible: NemotronForCausalLM fails.*auto") as error:
        make_trainer(model=build("nemotron", **sizes), pack_groups="on", **keys)
    assert "\n" not in str(error.value)
    padded, fallen_back = (run(model=build("nemotron", **sizes), pack_groups=pack, **keys) for pack in ("off", "auto"))
    assert largest_difference(padded, fallen_back) == 0.0
    assert fallen_back.acceleration.packing.startswith("off: NemotronForCausalLM fails on a packed row (RuntimeError")
    assert read_env(fallen_back.args.output_dir)["execution"]["packing"] == fallen_back.acceleration.packing


def chosen(made):
    """What a trainer would do if it were made now."""
    return acceleration.Acceleration.of(made, made.accelerator.unwrap_model(made.model), made._padded_logps).packing


def test_where_weights_are_sharded_it_says_that_it_was_skipped(make_trainer, monkeypatch, caplog):
    made = make_trainer(pack_groups="on")
    monkeypatch.setattr(acceleration, "probe_packing", lambda *args: pytest.fail("half of the weights were asked"))
    for fsdp, plugin in ((True, None), (False, SimpleNamespace(zero_stage=3))):
        made.is_fsdp_enabled, made.args.deepspeed_plugin = fsdp, plugin
        caplog.clear()
        assert chosen(made) == "on; its numbers were not tried, because the weights are sharded"
        assert "not tried on this model: its weights are sharded" in caplog.text
    made.args.deepspeed_plugin = SimpleNamespace(zero_stage=2)
    monkeypatch.setattr(acceleration, "probe_packing", lambda *args: "the numbers differ.")
    with pytest.raises(ValueError, match="the numbers differ"):
        chosen(made)


def test_processes_agree(make_trainer, monkeypatch):
    """One that found something keeps all from packing: they would wait for each other for ever."""
    made = make_trainer(pack_groups="auto")
    assert made.acceleration.packing == "on"
    monkeypatch.setattr(acceleration, "gather_object", lambda reasons: [*reasons, "another rank found a difference."])
    assert chosen(made) == "off: another rank found a difference."


def test_a_kernel_that_shows_no_rounding_does_not_make_every_difference_a_trouble(monkeypatch):
    model = uneven("qwen2")
    monkeypatch.setattr(packing_probe, "sdpa_kernel", lambda kind: nullcontext())
    assert probed(model, "bf16") is None
