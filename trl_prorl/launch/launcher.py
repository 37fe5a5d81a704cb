"""What `accelerate launch` was told, as keys of a recipe that leaves precision and device to it."""

import os
import sys


def launcher_keys() -> list[str]:
    """
    The precision and the device of the launcher, as a command line; nothing without a launcher.

    Raises:
        `ValueError`: this machine has no GPU, and the launcher was told of several, or of fp16.
    """
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION")
    if precision is None:
        return []
    import torch

    on_cpu = os.environ.get("ACCELERATE_USE_CPU")  # not set where the launcher starts one process a GPU
    if on_cpu is None and not torch.cuda.is_available():
        raise ValueError(
            "accelerate launch was told of several GPUs, and torch finds none here. Launch with "
            "--config_file accelerate_configs/cpu.yaml, or run this script with python."
        )
    use_cpu = on_cpu == "True" or not torch.cuda.is_available()
    if use_cpu and precision == "fp16":
        raise ValueError("accelerate launch says mixed_precision=fp16, which needs a GPU. Launch with no, or bf16.")
    if use_cpu and precision == "bf16":
        print("The launcher says bf16, and this run is on a CPU: it computes in bf16 there.", file=sys.stderr)
    keys = {"bf16": precision == "bf16", "fp16": precision == "fp16", "use_cpu": use_cpu}
    return [part for key, value in keys.items() for part in (f"--{key}", str(value).lower())]
