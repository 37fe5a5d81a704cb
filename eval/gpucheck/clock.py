"""Seconds and memory of a piece of work, on a device that works on while Python goes ahead."""

import gc
import time
from collections.abc import Callable

import torch

from trl_prorl.eval.gpucheck.size import Size


def settle(size: Size) -> None:
    """Wait until the device has done all that it was told."""
    if size.on_card:
        torch.cuda.synchronize()


def seconds_of(work: Callable[[], object], size: Size) -> float:
    """Seconds from an idle device to an idle device."""
    settle(size)
    began = time.perf_counter()
    work()
    settle(size)
    return time.perf_counter() - began


def begin_memory(size: Size) -> float:
    """Begin to watch the peak; GiB that are held already."""
    if not size.on_card:
        return 0.0
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated() / 2**30


def peak_memory(size: Size) -> float | None:
    """GiB, at most, since [`begin_memory`]; `None` without a GPU, where it is not measured."""
    return torch.cuda.max_memory_allocated() / 2**30 if size.on_card else None


def free(size: Size) -> None:
    """Give back the memory of what is no longer used."""
    gc.collect()
    if size.on_card:
        torch.cuda.empty_cache()
