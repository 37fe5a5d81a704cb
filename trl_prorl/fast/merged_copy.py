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

from ..upstream.modules import is_plain_linear


ROWS = 8  # input rows for which oneDNN chooses the order; any number works
# Layers of a module that multiply the same states.
FUSED = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"),
)


class PackedLinear(torch.nn.Module):
    """A linear layer for inference, with the values at the last refresh. It needs additional `bytes`."""

    def __init__(self, layer: torch.nn.Linear):
        super().__init__()
        object.__setattr__(self, "_layer", layer)  # not a module of the copy
        self._packed: torch.Tensor | None = None
        self._of: tuple[int, int] | None = None  # address and version of the packed weights
        self.bytes = layer.weight.nbytes

    @property
    def weight(self) -> torch.Tensor:
        return self._layer.weight

    @property
    def bias(self) -> torch.Tensor | None:
        return self._layer.bias

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
        is_plain_linear(layer)
        and layer.weight.device.type == "cpu"
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and (layer.weight.dtype == torch.float32 or packs_bf16() and layer.weight.dtype == torch.bfloat16)
    )


def packs_bf16() -> bool:
    return hasattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported") and torch.ops.mkldnn._is_mkldnn_bf16_supported()


class MergedLayer:
    """
    Merges the LoRA of a layer into the copy's weights: `module` replaces PEFT's layer in the copy, and needs `bytes`.
    Its `weights` are the policy's own before a [`~MergedLayer.refresh`] and after a [`~MergedLayer.release`]; from one
    refresh to the next they stay in the same memory.
    """

    def __init__(self, layer: BaseTunerLayer, adapter: str):
        self._layer = layer
        self._adapter = adapter
        self.weights = layer.get_base_layer()
        self.weights._forward_pre_hooks.update(layer._forward_pre_hooks)  # such as the hook that casts embeddings
        self.weights._forward_hooks.update(layer._forward_hooks)
        self._originals = dict(self.weights.named_parameters(recurse=False))  # the policy's own
        self._memory: dict[str, torch.Tensor] = {}
        self.bytes = 0
        for name, param in self._originals.items():
            setattr(self.weights, name, torch.nn.Parameter(param.detach(), requires_grad=False))
            self.bytes += param.nbytes
        self._packed = PackedLinear(self.weights) if can_be_packed(self.weights) else None
        self.module = self._packed or self.weights

    def refresh(self) -> None:
        for name, original in self._originals.items():
            if name not in self._memory:
                self._memory[name] = torch.empty_like(original)
        self.merge_into(self._memory)
        if self._packed is not None:
            self._packed.pack()
            self.show_original("weight")  # keep the merged weights only once

    def merge_into(self, memory: dict[str, torch.Tensor]) -> None:
        """Merge into tensors, by the names of the layer's parameters."""
        self._memory = memory
        for name, original in self._originals.items():
            getattr(self.weights, name).data = memory[name].copy_(original)
        self._layer.merged_adapters.clear()
        self._layer.merge(adapter_names=[self._adapter])
        for name, tensor in memory.items():  # DoRA makes new ones
            getattr(self.weights, name).data = tensor.copy_(getattr(self.weights, name).data)

    def show_original(self, name: str) -> None:
        """Free the memory of a merged parameter."""
        getattr(self.weights, name).data = self._originals[name].detach()
        self._memory.pop(name, None)

    def release(self) -> None:
        for name in self._originals:
            self.show_original(name)
        if self._packed is not None:
            self._packed.release()


class FusedLayers:
    """Merged linear layers with the same input: `modules` replace them, and the first called multiplies for all."""

    def __init__(self, layers: list[MergedLayer]):
        self._layers = layers
        weights = [layer.weights for layer in layers]
        self.bytes = sum(layer.bytes for layer in layers)
        self._sizes = [one.out_features for one in weights]
        first = weights[0]
        with torch.device("meta"):
            self._fused = torch.nn.Linear(first.in_features, sum(self._sizes), bias=first.bias is not None)
        self._empty = {name: param.new_empty(0) for name, param in first.named_parameters()}
        for name, none in self._empty.items():
            setattr(self._fused, name, torch.nn.Parameter(none, requires_grad=False))
        self._packed = PackedLinear(self._fused) if can_be_packed(first) else None
        self.modules = [
            FusedPart(self._packed or self._fused, self._sizes, place, one) for place, one in enumerate(weights)
        ]
        for part in self.modules:
            part.waiting = self.modules[0].waiting

    def refresh(self) -> None:
        memory = {}
        for name, param in self._fused.named_parameters():
            if param.numel() == 0:
                like = getattr(self._layers[0].weights, name)
                param.data = like.new_empty(sum(self._sizes), *like.shape[1:])
            memory[name] = param.data.split(self._sizes)
        for place, layer in enumerate(self._layers):
            layer.merge_into({name: parts[place] for name, parts in memory.items()})
        if self._packed is not None:
            self._packed.pack()
            self._free("weight")

    def _free(self, name: str) -> None:
        for layer in self._layers:
            layer.show_original(name)
        getattr(self._fused, name).data = self._empty[name]

    def release(self) -> None:
        for name in self._empty:
            self._free(name)
        if self._packed is not None:
            self._packed.release()


class FusedPart(torch.nn.Module):
    """
    A layer of [`FusedLayers`].

    Attributes:
        waiting (`dict`): The last states `(*, H)`, and for each other layer its result, until it is called.
    """

    def __init__(self, fused: torch.nn.Module, sizes: list[int], place: int, layer: torch.nn.Linear):
        super().__init__()
        self.fused = fused
        self._sizes = sizes
        self._place = place
        object.__setattr__(self, "_layer", layer)  # not a module of the copy
        self.waiting: dict[int | str, torch.Tensor] = {}

    @property
    def weight(self) -> torch.Tensor:
        return self._layer.weight

    @property
    def bias(self) -> torch.Tensor | None:
        return self._layer.bias

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Multiply `hidden` of shape `(*, H)` by the layer's weight: shape `(*, N)`."""
        waiting = self.waiting
        if waiting.get("states") is not hidden or self._place not in waiting:
            waiting.clear()
            waiting["states"] = hidden
            waiting.update(enumerate(self.fused(hidden).split(self._sizes, dim=-1)))
        result = waiting.pop(self._place)
        if len(waiting) == 1:
            waiting.clear()
        return result


def find_fused(layers: dict[str, MergedLayer]) -> list[list[str]]:
    """Return the names of merged layers that can be fused, those of a product together."""
    found = []
    for name in layers:
        parent, _, kind = name.rpartition(".")
        for kinds in FUSED:
            names = [f"{parent}.{one}" for one in kinds if f"{parent}.{one}" in layers]
            if kind in kinds and names[0] == name and len(names) > 1:
                weights = [layers[one].weights for one in names]
                if len({describe_linear(one) for one in weights}) == 1 and all(map(is_plain_linear, weights)):
                    found.append(names)
    return found


def describe_linear(layer: torch.nn.Module) -> tuple:
    """Return what fused layers have in common."""
    weight = layer.weight
    return weight.shape[1:], weight.dtype, weight.device, getattr(layer, "bias", None) is None


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
        layers = {name: MergedLayer(layer, adapter) for name, layer in find_adapted_layers(self.model, adapter)}
        modules = {name: layer.module for name, layer in layers.items()}
        self._layers: list[MergedLayer | FusedLayers] = []
        for names in find_fused(layers):
            fused = FusedLayers([layers.pop(name) for name in names])
            self._layers.append(fused)
            modules |= zip(names, fused.modules, strict=True)
        self._layers += layers.values()
        for name, module in modules.items():
            self.model.set_submodule(name, module)
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
    model = policy.get_base_model()
    for name, layer in find_adapted_layers(model, adapter):
        base = layer.get_base_layer()
        if layer.base_layer is not base:
            return f"{name} has adapters of several parameters"
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
