"""The device and the libraries, to which a table of numbers belongs."""

import importlib.metadata
import os
import platform
from pathlib import Path

import torch

import trl_prorl
from trl_prorl.eval.gpucheck.parts import Size
from trl_prorl.eval.gpucheck.result import Result


ROOT = Path(trl_prorl.__file__).parent.parent  # of a checkout, where there is one
LIBRARIES = ("torch", "transformers", "trl", "peft", "accelerate", "bitsandbytes", "triton", "deepspeed", "vllm")


def see_one_gpu() -> str | None:
    """
    Let this process's children see one GPU, and say so if there are more: with several in one process transformers
    would split every batch over them, which TRL refuses.
    """
    if (number := torch.cuda.device_count()) < 2:
        return None
    os.environ["CUDA_VISIBLE_DEVICES"] = first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    return f"of {number} GPUs one is used: CUDA_VISIBLE_DEVICES={first}. Set it to use another one."


def machine(size: Size, folder: Path) -> Result:
    """Name and memory of the device, and versions."""
    result = Result()
    torch.ones(8, device=size.device).sum().item()  # fails here where torch has no kernels for the card
    name, memory = f"CPU, {platform.machine()}", None
    if size.on_card:
        properties = torch.cuda.get_device_properties(0)
        name, memory = properties.name, properties.total_memory / 2**30
        # Older cards emulate bf16, which is right and slow: it says nothing about a run in fp16 or fp32.
        supported = torch.cuda.is_bf16_supported(including_emulation=False)
        result.check("bf16 is supported", supported, f"{name}: {'yes' if supported else 'only emulated'}")
    versions = {name: version(name) for name in LIBRARIES if version(name) is not None}
    result.facts |= {"device": name, "memory_gib": memory, "versions": versions}
    return result


def version(library: str) -> str | None:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None
