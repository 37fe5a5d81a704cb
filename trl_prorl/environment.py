"""`trl-prorl env`: what a report of a bug should say of the machine."""

import argparse
import os
from pathlib import Path


# Instructions of a CPU on which a kernel, and so the last bits of a number, depends.
FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
VARIABLES = ("ACCELERATE_", "CUDA_VISIBLE", "HF_HUB_OFFLINE", "OMP_", "PYTORCH_", "TRL_", "WORLD_SIZE")


def main() -> None:
    """Print TRL's list of versions, and ours."""
    description = "Versions and flags, for a report of a bug."
    argparse.ArgumentParser("trl-prorl env", description=description).parse_args()
    from trl.scripts.env import print_env

    from .run.folder import git_commit, versions

    print_env()
    found, cpu = versions(), Path("/proc/cpuinfo")
    words = set(cpu.read_text().split()) if cpu.exists() else set()
    flags = [flag for flag in FLAGS if flag in words]
    variables = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)]
    print(f"- trl-prorl version: {found.get('trl-prorl', 'not installed')}, commit {git_commit() or 'unknown'}")
    print(f"- CPU: {os.cpu_count()} cores, {' '.join(flags) or 'flags unknown'}")
    print(f"- Variables: {' '.join(variables) or 'none'}")
