"""LoRA's forward and backward by products alone, with PEFT's layer as the control."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora.layer import Linear

from trl_prorl.scoring.lean_lora import LeanLinear, lean


def layer_of(bias=False, dtype=torch.float32, **keys):
    """A model of one linear layer, 24 to 40, whose adapter is not zero."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(24, 40, bias=bias).to(dtype))
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=12, target_modules=["0"], **keys))
    for name, param in model.named_parameters():
        if "lora_" in name:
            param.data.normal_()
    return model


def results(model, mixed):
    """The output and all gradients, in double precision."""
    torch.manual_seed(1)
    states = torch.randn(2, 5, 24, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        output = model(states)
    trained = [param for param in model.parameters() if param.requires_grad]
    gradients = torch.autograd.grad(output, [states, *trained], torch.randn(2, 5, 40).to(output.dtype))
    assert [part.dtype for part in gradients] == [torch.float32] * len(gradients)
    return [part.double() for part in (output, *gradients)]


@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_pefts(bias):
    model = layer_of(bias)
    other = copy.deepcopy(model)
    lean(other)
    assert {type(layer) for layer in other.modules()} & {Linear, LeanLinear} == {LeanLinear}
    for theirs, mine in zip(results(model, False), results(other, False), strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_under_autocast_it_errs_no_more_than_peft(dtype):
    model = layer_of(True, dtype)
    exact = copy.deepcopy(model).float()
    other = copy.deepcopy(model)
    lean(other)
    for true, theirs, mine in zip(results(exact, False), results(model, True), results(other, True), strict=True):
        assert (mine - true).norm() <= 1.1 * (theirs - true).norm()


@pytest.mark.parametrize("way", ["disabled", "merged", "two adapters", "bf16 weights, no autocast"])
def test_other_calls_are_pefts_to_the_bit(way):
    model = layer_of(dtype=torch.bfloat16 if "bf16" in way else torch.float32)
    if way == "two adapters":
        model.add_adapter("other", LoraConfig(r=2, target_modules=["0"], init_lora_weights=False))
        model.base_model.set_adapter(["default", "other"])
    if way == "merged":
        model.merge_adapter()
    other = copy.deepcopy(model)
    lean(other)
    found = []
    for each in (model, other):
        states = torch.ones(3, 24, dtype=each.base_model.model[0].base_layer.weight.dtype)
        if way == "disabled":
            with each.disable_adapter():
                found.append(each(states))
        else:
            found.append(each(states))
    assert torch.equal(*found)


@pytest.mark.parametrize("case", ["use_dora", "lora_dropout", "lora_bias", "trained", "replaced", "hook"])
def test_layers_that_are_left_alone(case):
    keys = {"lora_dropout": {"lora_dropout": 0.5}, "lora_bias": {"lora_bias": True}, "use_dora": {"use_dora": True}}
    model = layer_of(True, **keys.get(case, {}))
    base = model.base_model.model[0].base_layer
    if case == "trained":
        base.weight.requires_grad_()
    if case == "replaced":
        base.forward = base.forward
    if case == "hook":
        base.register_forward_hook(lambda *given: None)
    lean(model)
    assert not any(isinstance(layer, LeanLinear) for layer in model.modules())
