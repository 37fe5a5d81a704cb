"""
Weights that a generation does not change, where TRL casts them or merges the adapter into them, and bitsandbytes packs
them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from accelerate.utils import is_peft_model
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from trl.generation.vllm_generation import VLLMGeneration


@contextmanager
def keep_weights(model: torch.nn.Module) -> Iterator[None]:
    """
    Keep every parameter and buffer of a model as it is, bit for bit, whatever a cast in this context does to it.

    TRL 1.16 casts the policy to bf16 or fp16 before `generate_batch` of transformers' continuous batching, and never
    back: fp32 LoRA weights are bf16 from the first generation on, and updates smaller than their rounding are lost. A
    cast makes new tensors, so that the old ones need only be remembered.

    Args:
        model (`torch.nn.Module`): The policy, whole on this process.
    """
    parameters = [(parameter, parameter.data) for parameter in model.parameters()]
    buffers = [(module, dict(module._buffers)) for module in model.modules()]
    try:
        yield
    finally:
        for parameter, data in parameters:
            parameter.data = data
        for module, held in buffers:
            module._buffers.update(held)


def keep_unpacked(model: torch.nn.Module) -> None:
    """
    Keep bitsandbytes from packing weights in 4 bits for a CPU with AVX512-BF16.

    It does so in the first forward without gradient, and no later forward of those weights has one.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def keep_base_in_syncs(generation: VLLMGeneration) -> None:
    """
    Let TRL's [`~trl.generation.vllm_generation.VLLMGeneration`] get the policy's weights, its adapter merged, without
    a trace in the policy.

    TRL merges the adapter into all weights, hands them on one by one, and takes it out again. In bf16 each time leaves
    rounding behind, which adds up: the policy, its reference and the base would stand on weights that no file holds.
    Here TRL merges nothing, and each weight is merged in a copy as TRL hands it on, so that one layer at a time is
    held twice.
    """
    model = generation.model
    if not is_peft_model(model):
        return
    read = generation._iter_named_params

    def read_merged() -> Iterator[tuple[str, torch.Tensor]]:
        with merging_nothing(model):
            adapted = find_adapted_weights(model)
            for name, weight in read():
                if weight.data_ptr() in adapted:
                    weight = adapted[weight.data_ptr()].merged()
                yield name, weight

    generation._iter_named_params = read_merged


@contextmanager
def merging_nothing(model: PeftModel) -> Iterator[None]:
    """Let `merge_adapter` look whether merging is possible, and neither it nor `unmerge_adapter` change a weight."""
    model.merge_adapter = partial(model.merge_adapter, adapter_names=[])
    model.unmerge_adapter = lambda: None
    try:
        yield
    finally:
        del model.merge_adapter
        del model.unmerge_adapter


class AdaptedWeight(NamedTuple):
    """
    Is a weight that adapters change.

    Attributes:
        base (`torch.nn.Module`): The layer that has it, below the adapters.
        name (`str`): Its name there.
        layers (`list[BaseTunerLayer]`): PEFT's layers around it, in the order in which they merge.
    """

    base: torch.nn.Module
    name: str
    layers: list[BaseTunerLayer]

    def merged(self) -> torch.Tensor:
        """Return the weight with the active adapters merged; the layer has its own weights again afterwards."""
        own = dict(self.base.named_parameters(recurse=False))
        try:
            for name, param in own.items():
                if param.is_floating_point():  # PEFT creates a new quantised weight to merge it
                    setattr(self.base, name, torch.nn.Parameter(param.detach().clone(), requires_grad=False))
            for layer in self.layers:
                layer.merge()
            return getattr(self.base, self.name).data
        finally:
            for name, param in own.items():
                setattr(self.base, name, param)
            for layer in self.layers:
                layer.merged_adapters.clear()


def find_adapted_weights(model: torch.nn.Module) -> dict[int, AdaptedWeight]:
    """Find the weights that adapters change, by their addresses."""
    around: dict[torch.nn.Module, list[BaseTunerLayer]] = {}
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            around.setdefault(module.get_base_layer(), []).append(module)
    found = {}
    for base, layers in around.items():
        for name, param in base.named_parameters(recurse=False):
            found[param.data_ptr()] = AdaptedWeight(base, name, layers)
    return found
