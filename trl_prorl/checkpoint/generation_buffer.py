"""The generation buffer beside a checkpoint: the samples that are still to be trained on when a run is cut short."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file


def buffer_file(process: int) -> str:
    """Every process has a buffer of its own."""
    return f"buffer-{process}.safetensors"


def save_buffer(path: Path, batches: list[Mapping[str, Any]]) -> None:
    """
    Write micro-batches.

    Args:
        path (`Path`): The file.
        batches (`list[Mapping[str, Any]]`):
            One mapping for each micro-batch, of tensors and of values that JSON can hold.
    """
    tensors, values = {}, []
    for number, batch in enumerate(batches):
        held = {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}
        # Micro-batches are slices of one tensor, and safetensors refuses tensors that share memory.
        tensors |= {f"{number}.{name}": tensor.detach().clone().contiguous() for name, tensor in held.items()}
        values.append({name: value for name, value in batch.items() if name not in held})
    save_file(tensors, path, metadata={"values": json.dumps(values)})


def load_buffer(path: Path, device: torch.device) -> list[dict[str, Any]]:
    """Read what [`save_buffer`] wrote."""
    # Read on the CPU, as one of several processes there has the device "cpu:0", which safetensors does not know.
    with safe_open(path, framework="pt") as file:
        batches = json.loads(file.metadata()["values"])
        for key in file.keys():
            number, name = key.split(".", 1)
            batches[int(number)][name] = file.get_tensor(key).to(device)
    return batches
