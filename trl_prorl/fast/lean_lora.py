"""
LoRA around a linear layer: x·W' + b + s·(x·A')·B' in the dtype of the products; only x and x·A' are kept. Under
autocast PEFT casts every layer's input to fp32 and back, and keeps both.
"""

from collections.abc import Iterable

import torch
from peft.tuners.lora.layer import Linear
from torch import nn

from ..upstream.modules import is_plain_linear


class Adapted(torch.autograd.Function):
    """
    Computes `(N, O)` from `states` `(N, I)`, `weight` `(O, I)`, `bias` `(O,)` or `None`, `down` `(r, I)` and `up` `(O,
    r)`, with gradients of all.
    """

    @staticmethod
    def forward(ctx, states, weight, bias, down, up, scale):
        low = states @ down.t()
        result = nn.functional.linear(states, weight, bias).addmm_(low, up.t(), alpha=scale)
        ctx.save_for_backward(states, weight, down, up, low)
        ctx.scale = scale
        return result

    @staticmethod
    def backward(ctx, gradient):
        states, weight, down, up, low = ctx.saved_tensors
        needs_states, needs_weight, needs_bias, needs_down, needs_up, _ = ctx.needs_input_grad
        states_gradient = weight_gradient = bias_gradient = down_gradient = up_gradient = None
        low_gradient = gradient @ up
        if needs_states:
            states_gradient = (gradient @ weight).addmm_(low_gradient, down, alpha=ctx.scale)
        if needs_weight:
            weight_gradient = gradient.t() @ states
        if needs_bias:
            bias_gradient = gradient.sum(0)
        # beta=0: of the first argument only the shape counts. This scales a product without another operator.
        if needs_down:
            down_gradient = torch.addmm(down, low_gradient.t(), states, beta=0, alpha=ctx.scale)
        if needs_up:
            up_gradient = torch.addmm(up, gradient.t(), low, beta=0, alpha=ctx.scale)
        return states_gradient, weight_gradient, bias_gradient, down_gradient, up_gradient, None


class LeanLinear(Linear):
    """PEFT's layer, with another forward if one plain adapter is active."""

    def forward(self, x, *args, **kwargs):
        names = [name for name in self.active_adapters if name in self.lora_A]
        if self.disable_adapters or self.merged or args or kwargs or len(names) != 1:
            return super().forward(x, *args, **kwargs)
        name = names[0]
        weight = self.base_layer.weight
        bias = self.base_layer.bias
        down = self.lora_A[name].weight
        up = self.lora_B[name].weight
        device = x.device.type
        mixed = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if mixed else x.dtype
        if not mixed and not weight.dtype == down.dtype == dtype:
            return super().forward(x)
        states = x.reshape(-1, x.shape[-1]).to(dtype)
        if bias is not None:
            bias = bias.to(dtype)
        with torch.autocast(device, enabled=False):
            result = Adapted.apply(states, weight.to(dtype), bias, down.to(dtype), up.to(dtype), self.scaling[name])
        return result.view(*x.shape[:-1], -1)


def plain_layers(policy: nn.Module) -> Iterable[Linear]:
    """Return a model's LoRA layers that compute nothing but [`Adapted`]."""
    for layer in policy.modules():
        base = getattr(layer, "base_layer", None)
        if (
            type(layer) is Linear
            and is_plain_linear(base)
            and not (layer.fan_in_fan_out or layer.lora_variant)
            and not any(layer.lora_bias.values())
            and all(isinstance(dropout, nn.Identity) for dropout in layer.lora_dropout.values())
        ):
            yield layer


def use_lean_layers(policy: nn.Module) -> list[Linear]:
    """Replace the forward of a model's plain LoRA layers, in place. Returns the changed layers."""
    layers = list(plain_layers(policy))
    for layer in layers:
        layer.__class__ = LeanLinear
    return layers


def restore_layers(layers: Iterable[Linear]) -> None:
    for layer in layers:
        layer.__class__ = Linear
