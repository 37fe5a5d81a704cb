"""
The policy with its LoRA merged, for sampling: half the matrix products of a token, and no wrapper around them.

Merging into the policy itself and taking it out again would leave rounding behind in every weight, in bf16 visibly.
The copy shares every parameter with the policy but the weights that LoRA changes, which are recomputed from base
and adapter, and on a CPU the LM head. There the weights of linear layers are in the order in which they are read: for
a few rows a CPU multiplies by a large matrix two to four times as fast if oneDNN has reordered the matrix before, and
by a small one a quarter faster. `torch.compile` does the same with the weights of a frozen model.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from peft import PeftModel, PeftType
from peft.tuners.tuners_utils import BaseTunerLayer

from .trial import first_line, tokens


ROWS = 8  # of an input, for which oneDNN chooses the order; it serves any number


class PackedLinear(torch.nn.Module):
    """
    Computes a linear layer for inference, with the values of another layer as they were at the last
    [`~PackedLinear.refresh`] or [`~PackedLinear.pack`].

    Args:
        layer (`torch.nn.Linear`): A layer that [`can_be_packed`] accepts.

    Attributes:
        bytes (`int`): Memory that it needs in addition to that layer.
    """

    def __init__(self, layer: torch.nn.Linear):
        super().__init__()
        object.__setattr__(self, "_layer", layer)  # not a module of the copy
        self._packed: torch.Tensor | None = None
        self._of: tuple[int, int] | None = None  # address and version of the weights that are packed
        self.bytes = layer.weight.numel() * layer.weight.element_size()

    @property
    def weight(self) -> torch.Tensor:
        """The weight of the layer, of shape `(V, H)`."""
        return self._layer.weight

    def refresh(self) -> None:
        """Take over the weights if they have changed."""
        now = (self.weight.data_ptr(), self.weight._version)
        if now != self._of:
            self._of = now
            self.pack()

    @torch.no_grad()
    def pack(self) -> None:
        """Take over the weights."""
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, ROWS)

    def release(self) -> None:
        """Give the memory back; the next [`~PackedLinear.pack`] takes over the weights again."""
        self._packed = None
        self._of = None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Multiply `hidden` of shape `(*, H)` by the weight: shape `(*, V)`."""
        return torch.ops.mkldnn._linear_pointwise(hidden, self._packed, self._layer.bias, "none", [], "")


def can_be_packed(layer: torch.nn.Module | None) -> bool:
    """Return whether a layer is a plain linear one on a CPU for which torch has oneDNN's operators."""
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
    """Return whether this CPU multiplies in bf16."""
    return hasattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported") and torch.ops.mkldnn._is_mkldnn_bf16_supported()


# A trial of the copy.
LENGTH = 12  # tokens
NOISE = 0.02  # of the adapter's weights
# Nats a token by which a copy in fp32 may differ. Rounding is some 1e-6 to 1e-5; a layer whose adapter is lost is a
# hundred times that.
EXACT = 1e-4


class MergedLayer:
    """
    Merges the LoRA of a layer into the copy's weights.

    They are the policy's own tensors until a [`~MergedLayer.refresh`], and again after a [`~MergedLayer.release`].

    Args:
        layer ([`~peft.tuners.tuners_utils.BaseTunerLayer`]): PEFT's layer, which merges, in the copy.
        adapter (`str`): The name of the adapter.

    Attributes:
        module (`torch.nn.Module`): What computes in the copy, in the place of PEFT's layer.
        bytes (`int`): Memory that the merged weights take.
    """

    def __init__(self, layer: BaseTunerLayer, adapter: str):
        self._layer = layer
        self._adapter = adapter
        self._weights = layer.get_base_layer()
        self._weights._forward_pre_hooks.update(layer._forward_pre_hooks)  # as that which casts embeddings
        self._weights._forward_hooks.update(layer._forward_hooks)
        self._originals = dict(self._weights.named_parameters(recurse=False))  # the policy's own
        self.bytes = 0
        for name, param in self._originals.items():
            setattr(self._weights, name, torch.nn.Parameter(param.detach(), requires_grad=False))
            self.bytes += param.numel() * param.element_size()
        self._packed = PackedLinear(self._weights) if can_be_packed(self._weights) else None
        self.module = self._packed or self._weights

    def refresh(self) -> None:
        """Merge the adapter into the base weights, both as they are now."""
        for name, original in self._originals.items():
            getattr(self._weights, name).data = original.detach().clone()
        self._layer.merged_adapters.clear()
        self._layer.merge(adapter_names=[self._adapter])
        if self._packed is not None:
            self._packed.pack()
            self._weights.weight.data = self._originals["weight"].detach()  # the merged ones are held once

    def release(self) -> None:
        """Give back the memory of the merged weights."""
        for name, original in self._originals.items():
            getattr(self._weights, name).data = original.detach()
        if self._packed is not None:
            self._packed.release()


class MergedCopy:
    """
    Holds a model whose weights are the policy's with the adapter merged.

    Args:
        policy ([`~peft.PeftModel`]): With an adapter that [`why_not_merged`] accepts.
        adapter (`str`, *optional*): Its name; the active one, unless another is named.

    Attributes:
        model ([`~transformers.PreTrainedModel`]): The copy. It has the values of the last [`~MergedCopy.refresh`],
            until a [`~MergedCopy.release`].
        bytes (`int`): Memory that it needs in addition to the policy, between the two.
    """

    def __init__(self, policy: PeftModel, adapter: str | None = None):
        adapter = adapter or policy.active_adapters[0]
        base = policy.get_base_model()
        shared = {id(tensor): tensor for tensor in (*base.parameters(), *base.buffers())}
        self.model = copy.deepcopy(base, shared)
        # TRL's, for its fused LM head: a closure that computes with the policy itself. Sampling does not need it.
        vars(self.model).pop("forward", None)
        for module in self.model.modules():
            if getattr(module, "gradient_checkpointing", False):
                module.gradient_checkpointing = False  # in training mode it would switch the cache off
        self._layers: list[MergedLayer] = []
        for name, layer in find_adapted_layers(self.model, adapter):
            replaced = _replaced_forward(self.model, name)
            if replaced is not None:
                raise ValueError(f"the forward method of {replaced} is replaced")
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
        """Take over the policy's weights as they are now."""
        for layer in self._layers:
            layer.refresh()
        if self._head is not None:
            self._head.refresh()

    def release(self) -> None:
        """Give back the memory of the merged weights. The head stays: training does not change it."""
        for layer in self._layers:
            layer.release()


def _replaced_forward(model: torch.nn.Module, name: str) -> str | None:
    """
    Name a layer, or a module around it, whose forward is an attribute of its own, and so computes anything.

    `None` if there is none.
    """
    if "forward" in vars(model.get_submodule(name).get_base_layer()):
        return name
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        around = ".".join(parts[:depth])
        if "forward" in vars(model.get_submodule(around)):
            return around
    return None


def find_adapted_layers(model: torch.nn.Module, adapter: str) -> list[tuple[str, BaseTunerLayer]]:
    """Return the names and the layers that an adapter changes."""
    found = []
    for name, module in model.named_modules():
        if isinstance(module, BaseTunerLayer):
            if any(adapter in getattr(module, held, ()) for held in module.adapter_layer_names):
                found.append((name, module))
    return found


def why_not_merged(policy: torch.nn.Module) -> str | None:
    """
    Return why a merged copy cannot sample for a policy, on trial (see [`~trl_prorl.fast.trial`]), in a few words;
    `None` if it can.

    The copy is compared with the policy. A new adapter changes nothing, so the policy has other weights meanwhile;
    afterwards they are what they were, bit for bit.
    """
    if not isinstance(policy, PeftModel):
        return "the model has no adapter"
    if len(policy.active_adapters) != 1:
        return f"{len(policy.active_adapters)} adapters are active"
    adapter = policy.active_adapters[0]
    config = policy.peft_config[adapter]
    if config.peft_type != PeftType.LORA or getattr(config, "alora_invocation_tokens", None):
        return f"the adapter is not a plain LoRA ({config.peft_type.value})"
    layers = find_adapted_layers(policy.get_base_model(), adapter)
    for name, layer in layers:
        params = list(layer.get_base_layer().parameters(recurse=False))
        if not params or not all(param.is_floating_point() for param in params):
            return f"{name} is quantised"
    try:
        with disturb(policy, adapter):
            difference = _difference(policy, MergedCopy(policy, adapter))
    except Exception as error:  # of whatever kind: kinds of layers and variants of LoRA differ in what they can
        return f"its adapter cannot be merged ({first_line(error)})"
    # Rounding of weights in fewer bits is measured on the samples themselves.
    exact = all(param.dtype == torch.float32 for param in policy.parameters())
    bound = EXACT if exact else torch.inf
    if not difference <= bound:
        return f"its log-probabilities differ by {difference:.2g} nats per token after merging"
    return None


@contextmanager
def disturb(policy: PeftModel, adapter: str) -> Iterator[None]:
    """Add noise to an adapter while this lasts: its initialisation may change nothing."""
    params = [param for name, param in policy.named_parameters() if "lora_" in name and adapter in name.split(".")]
    before = [param.detach().clone() for param in params]
    source = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():
            for param in params:
                noise = torch.randn(param.shape, generator=source) * NOISE
                param.add_(noise.to(param))
        yield
    finally:
        with torch.no_grad():
            for param, old in zip(params, before, strict=True):
                param.copy_(old)


@torch.no_grad()
def _difference(policy: PeftModel, merged: MergedCopy) -> float:
    """Return the mean absolute difference of log-probabilities, in nats, over all tokens at a few places."""
    vocabulary = policy.get_input_embeddings().weight.shape[0]
    ids = tokens(LENGTH, vocabulary)[None].to(next(policy.parameters()).device)
    merged.refresh()
    logps = policy(input_ids=ids).logits.float().log_softmax(-1)
    logps_of_copy = merged.model(input_ids=ids).logits.float().log_softmax(-1)
    return (logps - logps_of_copy).abs().mean().item()
