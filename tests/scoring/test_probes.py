"""What a trial asks of a model's values and gradients in packed rows."""

from contextlib import nullcontext
from functools import partial
from unittest.mock import Mock

import pytest
import torch
from packed_models import padded_logps, uneven, with_head
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from trl_prorl.embedded.shipped import embedded_model
from trl_prorl.fast import probes
from trl_prorl.fast.lean_lora import Adapted
from trl_prorl.fast.packing import packed_logps
from trl_prorl.fast.probes import (
    coarsest_unit,
    first_difference,
    last_of_each_kind,
    packing_obstacle,
)


ADAPTERS = {
    "full": None,
    "new LoRA": {},
    "biases of adapted layers": {"bias": "lora_only"},
    "all biases": {"bias": "all"},
    "biases of the adapter": {"lora_bias": True, "target_modules": ["q_proj", "v_proj"]},
    "magnitudes": {"use_dora": True},
    "a module": {"modules_to_save": ["lm_head"]},
    "embeddings": {"target_modules": ["embed_tokens", "q_proj", "down_proj"]},
    "a first layer alone": {"layers_to_transform": [0]},
}


def made(case, **sizes):
    """A model with what a case trains."""
    model = uneven("qwen2", tie_word_embeddings=False, **sizes)
    if ADAPTERS[case] is None:
        return model
    keys = {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, **{**keys, **ADAPTERS[case]}))
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, param in model.named_parameters():
            if "lora_" in name:  # a new adapter gives one of its factors no gradient
                param.add_(0.02 * torch.randn(param.shape, generator=generator))
    return model.eval()


def probed(model, precision="fp32", packed=None):
    autocast = partial(torch.autocast, "cpu", torch.bfloat16) if precision == "autocast" else nullcontext
    if precision == "bf16":
        model.to(torch.bfloat16)
    with pytest.MonkeyPatch.context() as patch:
        if packed is not None:
            patch.setattr(probes, "packed_logps", packed)
        padded = lambda *batch: padded_logps(model, *batch, autocast=autocast)[0]  # noqa: E731
        return packing_obstacle(model, padded, autocast, torch.bfloat16 if precision == "autocast" else None)


PRECISIONS = pytest.mark.parametrize("precision", ["fp32", "autocast", "bf16"])


@PRECISIONS
@pytest.mark.parametrize("case", ADAPTERS)
def test_rounding_of_gradients_is_let_pass(case, precision):
    assert probed(made(case), precision) is None


# What the backward pass of an adapted layer returns, and the tensor whose gradient is then wrong.
LOST = {0: "layers.0.self_attn.q_proj", 2: "q_proj.base_layer.bias", 3: "q_proj.lora_A", 4: "q_proj.lora_B"}


@pytest.mark.parametrize("precision", ["fp32", "autocast"])
@pytest.mark.parametrize("place", LOST)
@pytest.mark.parametrize("factor", [None, 2.0])
def test_a_gradient_that_is_lost_or_wrong_is_found(monkeypatch, place, factor, precision):
    backward = Adapted.backward

    def wrong(ctx, gradient):
        found = list(backward(ctx, gradient))
        if found[place] is not None:
            found[place] = None if factor is None else found[place] * factor
        return tuple(found)

    monkeypatch.setattr(Adapted, "backward", wrong)
    answer = probed(made("biases of adapted layers"), precision)
    assert LOST[place] in answer


def test_what_is_trained_elsewhere_is_compared_too():
    """Each kind by itself: packed rows in which no gradient reaches it."""
    for case in ("magnitudes", "embeddings", "full"):
        model = made(case)
        for name, param in last_of_each_kind(model).items():
            if ".layers.0." in name:
                continue

            def without(*rows, param=param, **keys):
                param.requires_grad_(False)
                try:
                    return packed_logps(*rows, **keys)
                finally:
                    param.requires_grad_(True)

            assert f"{name} gets no gradient from packed rows" in (probed(model, packed=without) or ""), (case, name)


@pytest.mark.parametrize(
    "mine, right, words",
    [
        ([3.0, 4.0], [3.0, 4.0], None),
        ([3.0, 4.0005], [3.0, 4.0], None),
        ([3.0, 4.1], [3.0, 4.0], "by 0.02 of its size"),
        ([3.0, float("nan")], [3.0, 4.0], "by nan of its size"),
        ([0.0, 0.0], [3.0, 4.0], "b gets no gradient from packed rows"),
        (None, [3.0, 4.0], "b gets no gradient from packed rows"),
        ([3.0, 4.0], None, "b gets a gradient from packed rows"),
        ([0.0, 0.0], None, None),
        ([2e-6, 0.0], [1e-6, 0.0], None),  # beside a gradient of 100 the difference is rounding
    ],
)
def test_a_difference_by_hand(mine, right, words):
    large = torch.tensor([60.0, 80.0])
    found = {"a": large, "b": None if mine is None else torch.tensor(mine)}
    expected = {"a": large, "b": None if right is None else torch.tensor(right)}
    answer = first_difference(found, expected, torch.finfo(torch.float32).eps)
    assert answer is None if words is None else words in answer


@pytest.mark.parametrize(
    "device, dtype, precision, unit",
    [
        ("cuda", torch.float32, "tf32", 2**-10),
        ("cuda", torch.float32, "ieee", 2**-23),
        ("cpu", torch.float32, "tf32", 2**-23),
        ("cuda", torch.bfloat16, "tf32", 2**-7),
    ],
)
def test_a_gpu_s_products_round_fp32_where_transformers_tf32_is_on(monkeypatch, device, dtype, precision, unit):
    """TensorFloat-32 keeps ten bits behind the point: a gradient then differs by more than fp32 explains."""
    parameter = Mock(dtype=dtype, device=torch.device(device))
    model = Mock(parameters=lambda: iter([parameter]))
    monkeypatch.setattr(torch.backends.cuda, "matmul", Mock(fp32_precision=precision))
    assert coarsest_unit(model, None) == unit


def test_the_trained_model_that_comes_with_the_package_is_let_pass():
    """It shows how positions round: a short prompt that padding moves to position 60 changes by 3e-5 nats a token."""
    model = with_head(AutoModelForCausalLM.from_pretrained(embedded_model(), dtype="float32"))
    assert probed(model) is None
    moved = lambda model, ids, *rest, **keys: packed_logps(model, ids.flip(0), *rest, **keys)  # noqa: E731
    assert "differ" in probed(model, packed=moved)


@PRECISIONS
@pytest.mark.parametrize("kind", ["qwen2", "gemma", "granite", "phi3", "qwen3_moe"])
def test_rounding_alone_is_let_pass(kind, precision):
    assert probed(uneven(kind), precision) is None


@PRECISIONS
@pytest.mark.parametrize("kind", ["hunyuan_v1_dense", "hunyuan_v1_moe"])
def test_a_model_to_which_absolute_positions_matter_is_found_by_its_numbers(kind, precision):
    """It normalises queries and keys after their rotation; as initialised, norms commute with one."""
    assert "differ" in probed(uneven(kind), precision)


@pytest.mark.parametrize(
    "precision, off",
    [("fp32", 1e-3), ("autocast", 0.1), ("bf16", 0.1), ("fp32", float("nan")), ("fp32", float("inf"))],
)
def test_a_change_beyond_rounding_is_found(precision, off):
    """By a factor of about ten of what these precisions can show, or not finite."""
    shifted = lambda *args, **keys: (packed_logps(*args, **keys)[0] + off, None)  # noqa: E731
    assert "differ" in probed(uneven("qwen2"), precision, shifted)
