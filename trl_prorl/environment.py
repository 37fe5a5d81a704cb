"""`trl-prorl env`: what a report of a bug should say of the machine."""

import argparse
import os
from pathlib import Path


CPUINFO = Path("/proc/cpuinfo")
VARIABLES = ("ACCELERATE_", "CUDA_VISIBLE", "HF_HUB_OFFLINE", "OMP_", "PYTORCH_", "TRL_", "WORLD_SIZE")


def main() -> None:
    """Print TRL's list of versions, and ours."""
    argparse.ArgumentParser("trl-prorl env", description="Versions and flags, for a report of a bug.").parse_args()
    from trl.scripts.env import print_env

    from .record.folder import git_commit, versions

    print_env()
    flags = {*CPUINFO.read_text().split()} & {"avx2", "avx512_bf16", "amx_bf16"} if CPUINFO.exists() else ()
    variables = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)]
    print(f"- trl-prorl version: {versions().get('trl-prorl')}, commit {git_commit()}")
    print(f"- CPU: {os.cpu_count()} cores, flags {' '.join(sorted(flags))}\n- Variables: {' '.join(variables)}")
