"""The policy with its LoRA merged, for sampling: half the matrix products of a token, and no wrapper around them.

Merging into the policy itself and taking it out again would leave rounding behind in every weight, in bf16 visibly.
The copy shares every parameter with the policy but the weights that LoRA changes, which are computed anew from base
and adapter, and on a CPU the LM head, which is held in another order ([`~trl_prorl.rollout.packed_head`]).
"""

import copy

import torch
from peft import PeftModel, PeftType
from peft.tuners.tuners_utils import BaseTunerLayer

from .packed_head import PackedHead, can_be_packed


class MergedCopy:
    """
    A model whose weights are the policy's with the adapter merged.

    Args:
        policy ([`~peft.PeftModel`]):
            With an adapter that [`why_not_merged`] accepts.
        adapter (`str`, *optional*, defaults to `"default"`):
            Its name.

    Attributes:
        model ([`~transformers.PreTrainedModel`]):
            The copy. It has the values of the last [`~MergedCopy.refresh`].
        bytes (`int`):
            Memory that it takes beside the policy.
    """

    def __init__(self, policy: PeftModel, adapter: str = "default"):
        base = policy.get_base_model()
        shared = {id(tensor): tensor for tensor in (*base.parameters(), *base.buffers())}
        self.model, self.adapter = copy.deepcopy(base, shared), adapter
        # TRL's, for its fused LM head: a closure that computes with the policy itself. Sampling does not need it.
        vars(self.model).pop("forward", None)
        self._layers: list[tuple[BaseTunerLayer, dict[str, torch.Tensor]]] = []
        self.bytes = 0
        for name, layer in adapted_layers(self.model, adapter):
            if patched := _patched(self.model, name):
                raise ValueError(f"the forward of {patched} is replaced")
            weights = layer.get_base_layer()
            originals = dict(weights.named_parameters(recurse=False))  # the policy's own
            for key, param in originals.items():
                setattr(weights, key, torch.nn.Parameter(param.detach().clone(), requires_grad=False))
                self.bytes += param.numel() * param.element_size()
            self._layers.append((layer, originals))
            self.model.set_submodule(name, weights)
        self._head = None
        if can_be_packed(head := self.model.get_output_embeddings()):
            self._head = PackedHead(head)
            self.bytes += self._head.bytes
            self.model.set_output_embeddings(self._head)

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the policy's weights as they are now."""
        for layer, originals in self._layers:
            weights = layer.get_base_layer()
            for key, original in originals.items():
                getattr(weights, key).copy_(original)
            layer.merged_adapters.clear()
            layer.merge(adapter_names=[self.adapter])
        if self._head is not None:
            self._head.refresh()


def _patched(model: torch.nn.Module, name: str) -> str | None:
    """The first module on the way to a layer whose forward is an attribute of its own, and so computes anything."""
    parts = name.split(".")
    way = [".".join(parts[: depth + 1]) for depth in range(len(parts))]
    return next((part for part in way if "forward" in vars(model.get_submodule(part))), None)


def adapted_layers(model: torch.nn.Module, adapter: str) -> list[tuple[str, BaseTunerLayer]]:
    """Names and layers that an adapter changes."""
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)]
    return [
        (name, layer)
        for name, layer in found
        if any(adapter in getattr(layer, held, ()) for held in layer.adapter_layer_names)
    ]


def why_not_merged(policy: torch.nn.Module, adapter: str = "default") -> str | None:
    """Why a policy is sampled as it is, in a few words, or `None` where a merged copy serves."""
    if not isinstance(policy, PeftModel):
        return "the model has no adapter"
    config = policy.peft_config[adapter]
    if config.peft_type != PeftType.LORA or getattr(config, "alora_invocation_tokens", None):
        return f"the adapter is not a plain LoRA ({config.peft_type.value})"
    layers = adapted_layers(policy.get_base_model(), adapter)
    for name, layer in layers:
        params = list(layer.get_base_layer().parameters(recurse=False))
        if not params or not all(param.is_floating_point() for param in params):
            return f"{name} is quantised"
    try:
        MergedCopy(policy, adapter).refresh()
    except Exception as error:  # of whatever kind: kinds of layers and variants of LoRA differ in what they can
        first = (str(error).strip().splitlines() or [""])[0][:120]
        return f"its adapter cannot be merged ({type(error).__name__}: {first})"
    return None
