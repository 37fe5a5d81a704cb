"""
LoRA around a frozen linear layer on a CPU: x·W' + s·(x·A')·B' in the dtype of the products, of which x and x·A' alone
are kept. Under autocast PEFT widens the input of every layer to fp32, narrows it again, and keeps both.
"""

import torch
from peft.tuners.lora.layer import Linear
from torch import nn


class Adapted(torch.autograd.Function):
    """Of `states` `(N, I)`, `weight` `(O, I)`, `bias` `(O,)` or `None`, `down` `(r, I)`, `up` `(O, r)`: `(N, O)`."""

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
        of_low = (gradient @ up).mul_(ctx.scale)
        of_states = (gradient @ weight).addmm_(of_low, down) if ctx.needs_input_grad[0] else None
        return of_states, None, None, of_low.t() @ states, (gradient.t() @ low).mul_(ctx.scale), None


class LeanLinear(Linear):
    """PEFT's layer, with another forward where one plain adapter is active."""

    def forward(self, x, *args, **kwargs):
        names = [name for name in self.active_adapters if name in self.lora_A]
        weight, bias = self.base_layer.weight, self.base_layer.bias
        mixed = torch.is_autocast_enabled("cpu")
        dtype = torch.get_autocast_dtype("cpu") if mixed else x.dtype
        if self.disable_adapters or self.merged or args or kwargs or len(names) != 1:
            return super().forward(x, *args, **kwargs)
        down, up, scale = self.lora_A[names[0]].weight, self.lora_B[names[0]].weight, self.scaling[names[0]]
        if not mixed and not weight.dtype == down.dtype == dtype:
            return super().forward(x)
        parts = (part if part is None else part.to(dtype) for part in (weight, bias, down, up))
        with torch.autocast("cpu", enabled=False):
            return Adapted.apply(x.reshape(-1, x.shape[-1]).to(dtype), *parts, scale).view(*x.shape[:-1], -1)


def lean(policy: nn.Module) -> None:
    """Let the plain LoRA layers of a model on a CPU compute so, in place; values change by rounding."""
    for layer in policy.modules():
        base = getattr(layer, "base_layer", None)
        if (
            type(layer) is Linear
            and type(base) is nn.Linear
            and base.weight.device.type == "cpu"
            and not (base.weight.requires_grad or layer.fan_in_fan_out or layer.lora_variant)
            and not any(layer.lora_bias.values())
            and all(isinstance(dropout, nn.Identity) for dropout in layer.lora_dropout.values())
            and not ("forward" in vars(base) or base._forward_hooks or base._forward_pre_hooks)
        ):
            layer.__class__ = LeanLinear
