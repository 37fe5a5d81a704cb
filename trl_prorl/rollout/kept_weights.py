"""
Weights that a generation does not change, where TRL casts them or merges the adapter into them, and bitsandbytes packs
them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from peft.tuners.tuners_utils import BaseTunerLayer


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


@contextmanager
def keep_base(model: torch.nn.Module) -> Iterator[None]:
    """
    Keep the weights under an adapter as they are, bit for bit, while it is merged and taken out again in this context.

    They are held twice meanwhile.
    """
    adapted = [module.get_base_layer() for module in model.modules() if isinstance(module, BaseTunerLayer)]
    found = {id(param): param for layer in adapted for param in layer.parameters(recurse=False)}
    kept = [(param, param.data) for param in found.values() if param.is_floating_point()]
    for param, data in kept:
        param.data = data.clone()
    try:
        yield
    finally:
        for param, data in kept:
            param.data = data


def keep_unpacked(model: torch.nn.Module) -> None:
    """
    Keep bitsandbytes from packing weights in 4 bits for a CPU with AVX512-BF16.

    It does so in the first forward without gradient, and no later forward of those weights has one.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def keep_base_in_syncs(generation, model: torch.nn.Module) -> None:
    """
    Let TRL's [`~trl.generation.vllm_generation.VLLMGeneration`] get the policy's weights without a trace in the
    policy.

    TRL merges the adapter to hand the weights on, and takes it out again. In bf16 each time leaves rounding behind,
    which adds up: the policy, its reference and the base would stand on weights that no file holds.
    """
    sync = generation.sync_weights

    def sync_weights() -> None:
        with keep_base(model):
            sync()

    generation.sync_weights = sync_weights
