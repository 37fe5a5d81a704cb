"""
The policy with its LoRA merged, for sampling: half the matrix products per token, and no wrapper around them.

Merging into the policy would leave rounding errors in every weight. The copy shares the policy's parameters, except
the weights that LoRA changes, and on a CPU the LM head. There oneDNN reorders the weights of linear layers: for a few
rows, a product with a large matrix is then two to four times as fast.
"""

import copy

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer

from ..supported import other_options


ROWS = 8  # input rows for which oneDNN chooses the order; any number works


class PackedLinear(torch.nn.Module):
    """A linear layer for inference, with the values at the last refresh. It needs additional `bytes`."""

    def __init__(self, layer: torch.nn.Linear):
        super().__init__()
        object.__setattr__(self, "_layer", layer)  # not a module of the copy
        self._packed: torch.Tensor | None = None
        self._of: tuple[int, int] | None = None  # address and version of the packed weights
        self.bytes = layer.weight.numel() * layer.weight.element_size()

    @property
    def weight(self) -> torch.Tensor:
        return self._layer.weight

    def refresh(self) -> None:
        now = (self.weight.data_ptr(), self.weight._version)
        if now != self._of:
            self._of = now
            self.pack()

    @torch.no_grad()
    def pack(self) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, ROWS)

    def release(self) -> None:
        self._packed = None
        self._of = None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(hidden, self._packed, self._layer.bias, "none", [], "")


def can_be_packed(layer: torch.nn.Module | None) -> bool:
    """Return whether oneDNN supports a layer: a plain linear layer on a CPU."""
    return (
        type(layer) is torch.nn.Linear
        and "forward" not in vars(layer)  # replaced, to cast
        and not (layer._forward_hooks or layer._forward_pre_hooks)
        and layer.weight.device.type == "cpu"
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and (layer.weight.dtype == torch.float32 or packs_bf16() and layer.weight.dtype == torch.bfloat16)
    )


def packs_bf16() -> bool:
    return hasattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported") and torch.ops.mkldnn._is_mkldnn_bf16_supported()


class MergedLayer:
    """
    Merges a layer's LoRA: `module` replaces PEFT's layer in the copy, and needs `bytes`. Its weights are the policy's
    own before a [`~MergedLayer.refresh`] and after a [`~MergedLayer.release`].
    """

    def __init__(self, layer: BaseTunerLayer, adapter: str):
        self._layer = layer
        self._adapter = adapter
        self._weights = layer.get_base_layer()
        self._weights._forward_pre_hooks.update(layer._forward_pre_hooks)  # such as the hook that casts embeddings
        self._weights._forward_hooks.update(layer._forward_hooks)
        self._originals = dict(self._weights.named_parameters(recurse=False))  # the policy's own
        self.bytes = 0
        for name, param in self._originals.items():
            setattr(self._weights, name, torch.nn.Parameter(param.detach(), requires_grad=False))
            self.bytes += param.numel() * param.element_size()
        self._packed = PackedLinear(self._weights) if can_be_packed(self._weights) else None
        self.module = self._packed or self._weights

    def refresh(self) -> None:
        for name, original in self._originals.items():
            getattr(self._weights, name).data = original.detach().clone()
        self._layer.merged_adapters.clear()
        self._layer.merge(adapter_names=[self._adapter])
        if self._packed is not None:
            self._packed.pack()
            self._weights.weight.data = self._originals["weight"].detach()  # keep the merged weights only once

    def release(self) -> None:
        for name, original in self._originals.items():
            getattr(self._weights, name).data = original.detach()
        if self._packed is not None:
            self._packed.release()


class MergedCopy:
    """
    A copy `model` of a policy with its active adapter merged. It needs `bytes` from a [`~MergedCopy.refresh`] to a
    [`~MergedCopy.release`].
    """

    def __init__(self, policy: PeftModel):
        adapter = policy.active_adapters[0]
        base = policy.get_base_model()
        shared = {id(tensor): tensor for tensor in (*base.parameters(), *base.buffers())}
        self.model = copy.deepcopy(base, shared)
        # TRL's closure for its fused LM head computes with the policy itself; sampling does not need it.
        vars(self.model).pop("forward", None)
        for module in self.model.modules():
            if getattr(module, "gradient_checkpointing", False):
                module.gradient_checkpointing = False  # in training mode it would disable the cache
        self._layers: list[MergedLayer] = []
        for name, layer in find_adapted_layers(self.model, adapter):
            merged = MergedLayer(layer, adapter)
            self._layers.append(merged)
            self.model.set_submodule(name, merged.module)
        self.bytes = sum(layer.bytes for layer in self._layers)
        self._head: PackedLinear | None = None
        head = self.model.get_output_embeddings()
        if can_be_packed(head):
            self._head = PackedLinear(head)
            self.bytes += self._head.bytes
            self.model.set_output_embeddings(self._head)

    @torch.no_grad()
    def refresh(self) -> None:
        for layer in self._layers:
            layer.refresh()
        if self._head is not None:
            self._head.refresh()

    def release(self) -> None:
        """Free the merged weights. The head stays, because training does not change it."""
        for layer in self._layers:
            layer.release()


def merge_obstacle(policy: torch.nn.Module) -> str | None:
    """Return why a merged copy cannot sample for a policy."""
    if not isinstance(policy, PeftModel):
        return "the model has no adapter"
    if len(policy.active_adapters) != 1:
        return f"{len(policy.active_adapters)} adapters are active"
    adapter = policy.active_adapters[0]
    config = policy.peft_config[adapter]
    other = other_options(config, "compact_merge")
    if other:
        return f"{', '.join(other)} of the adapter cannot be merged"
    model = policy.get_base_model()
    for name, layer in find_adapted_layers(model, adapter):
        base = layer.get_base_layer()
        params = list(base.parameters(recurse=False))
        if not params or not all(param.is_floating_point() for param in params):
            return f"{name} is quantised"
        if getattr(layer, "lora_bias", {}).get(adapter) and getattr(base, "bias", None) is None:
            return f"{name} has no bias into which lora_bias could be merged"
        replaced = _replaced_forward(model, name)
        if replaced is not None:
            return f"the forward method of {replaced} is replaced"
    return None


def _replaced_forward(model: torch.nn.Module, name: str) -> str | None:
    """Return the name of a module with a replaced forward."""
    if "forward" in vars(model.get_submodule(name).get_base_layer()):
        return name
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        around = ".".join(parts[:depth])
        if "forward" in vars(model.get_submodule(around)):
            return around
    return None


def find_adapted_layers(model: torch.nn.Module, adapter: str) -> list[tuple[str, BaseTunerLayer]]:
    found = []
    for name, module in model.named_modules():
        if isinstance(module, BaseTunerLayer):
            if any(adapter in getattr(module, held, ()) for held in module.adapter_layer_names):
                found.append((name, module))
    return found
