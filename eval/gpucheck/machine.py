"""The device and the libraries: what a table of numbers belongs to."""

import importlib.metadata
import os
import platform
import statistics
import time
from pathlib import Path

import torch

from trl_prorl.eval.gpucheck.clock import seconds_of
from trl_prorl.eval.gpucheck.result import Result
from trl_prorl.eval.gpucheck.size import Size


WARM_UP = 1.0  # seconds in which an idle card raises its clocks
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
    """Name and memory of the device, versions, and the rate of a large product of matrices."""
    result = Result()
    if size.on_card:
        properties = torch.cuda.get_device_properties(0)
        name, memory = properties.name, properties.total_memory / 2**30
        # Older cards emulate bf16, which is right and slow: it says nothing about a run that would use fp16 or fp32.
        supported = torch.cuda.is_bf16_supported(including_emulation=False)
        result.check("bf16 is supported", supported, f"{name}: {'yes' if supported else 'only emulated'}")
        major, minor = torch.cuda.get_device_capability()
        result.facts |= {"cuda": torch.version.cuda, "capability": f"{major}.{minor}"}
    else:
        name, memory = f"CPU, {platform.machine()}", 0.0
    result.facts |= {"device": name, "memory_gib": memory, "matmul_flops": matmul_rate(size)}
    result.facts["versions"] = versions()
    return result


def versions() -> dict[str, str]:
    """Of the libraries that are installed."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def matmul_rate(size: Size) -> float:
    """
    Operations per second of a large product in bf16: the most that a model could do on this device, whatever its
    data sheet says.
    """
    width = 8192 if size.on_card else 128
    left, right = (torch.randn(width, width, device=size.device, dtype=torch.bfloat16) for _ in range(2))
    began = time.monotonic()
    while size.on_card and time.monotonic() - began < WARM_UP:
        seconds_of(lambda: left @ right, size)
    times = [seconds_of(lambda: left @ right, size) for _ in range(12)]
    return 2 * width**3 / statistics.median(times[2:])
