"""The memory that a process uses, and the memory that it may use."""

import psutil
import torch


USABLE = 0.9  # share of the memory; the rest is lost to fragmentation
MOMENTS = 2  # Adam's, each as large as the trained weights; they are allocated at the first update
GIB = 2**30


def process_share(device: torch.device) -> tuple[int, int]:
    """
    Return the bytes that this process uses on a device, and the bytes that it can use: without those of other
    processes and of CUDA itself.
    """
    if device.type == "cuda":
        total = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
        return torch.cuda.memory_allocated(device), total
    used = psutil.Process().memory_info().rss
    return used, used + psutil.virtual_memory().available
