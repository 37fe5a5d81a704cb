"""Weights that a generation does not change, where TRL casts them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def kept_weights(model: torch.nn.Module) -> Iterator[None]:
    """
    While this lasts, a cast of the model lasts; afterwards every parameter and buffer is what it was, bit for bit.

    TRL 1.16 casts the policy to bf16 or fp16 before `generate_batch` of transformers' continuous batching, and never
    back: fp32 LoRA weights are bf16 from the first generation on, and updates smaller than their rounding are lost. A
    cast makes new tensors, so that the old ones need only be remembered.

    Args:
        model (`torch.nn.Module`):
            The policy, whole on this process.
    """
    parameters = [(parameter, parameter.data) for parameter in model.parameters()]
    buffers = [
        (module, name, buffer)
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        for parameter, data in parameters:
            parameter.data = data
        for module, name, buffer in buffers:
            module._buffers[name] = buffer
