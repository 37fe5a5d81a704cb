"""
Check a GPU and time steps on it: `trl-prorl gpu-check`, or `make gpu-check`.

Runs the GPU tests (from a checkout; they compare with TRL), and measures step times including generation: on one card
in at most 20 minutes, with the shapes of Qwen2.5 and random weights, without the Hub. Every part runs in a separate
process with a time limit, and its result is kept, so the same command continues after a stop. `--cpu` runs the parts
at toy size, without the tests.
"""

import functools
import hashlib
import os
import platform
import subprocess
import sys
from pathlib import Path

import torch

from trl_prorl.errors import RunError
from trl_prorl.eval import command_lines
from trl_prorl.eval.command import command
from trl_prorl.eval.gpucheck.page import page, publish
from trl_prorl.eval.gpucheck.runner import ROOT, run_parts
from trl_prorl.launch.ending import as_bad_input
from trl_prorl.launch.environment import installed


LIBRARIES = ("torch", "transformers", "trl", "peft", "accelerate", "bitsandbytes", "triton", "deepspeed", "vllm")
NO_GPU = "torch finds no usable GPU: nothing was measured. Run the parts at toy size with `--cpu`."
KEPT = "finished parts are kept. Run the same command again to continue."


def see_one_gpu() -> None:
    """
    Make only one GPU visible to child processes, and say so if there are more: with several in one process
    transformers would split every batch over them, which TRL does not support.
    """
    number = torch.cuda.device_count()
    if number > 1:
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        os.environ["CUDA_VISIBLE_DEVICES"] = first
        print(f"Using 1 of {number} GPUs: CUDA_VISIBLE_DEVICES={first}. Set it to use another one.")


def describe_machine(cpu: bool) -> dict:
    """Return name and memory of the device, and versions. Raises `RunError` if the device cannot be used."""
    described = {"device": f"CPU, {platform.machine()}"}
    if not cpu:
        try:
            torch.ones(8, device="cuda").sum().item()  # fails if torch has no kernels for the card
        except RuntimeError as error:
            raise RunError(f"{error}. Nothing was measured") from error
        properties = torch.cuda.get_device_properties(0)
        described = {"device": properties.name, "memory": f"{properties.total_memory / 2**30:.0f}"}
        described["driver"] = ask_driver()
    versions = {name: installed(name) for name in LIBRARIES}
    described["versions"] = {name: number for name, number in versions.items() if number is not None}
    return described


def ask_driver() -> str:
    """Return the driver's version and the GPU's highest clocks; nothing where `nvidia-smi` cannot tell them."""
    card = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    asked = ["-i", card, "--query-gpu=driver_version,clocks.max.sm,clocks.max.mem", "--format=csv,noheader"]
    try:
        answer = subprocess.run(["nvidia-smi", *asked], capture_output=True, text=True)
    except OSError:
        return ""
    if answer.returncode != 0:
        return ""
    version, core, memory = answer.stdout.strip().split(", ")
    return f"Driver {version}, clocks up to {core} and {memory} (memory). "


def hash_code() -> str:
    """Return a hash of our Python files: a result is valid only for this code."""
    digest = hashlib.sha256()
    for folder in ("trl_prorl", "eval", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@functools.partial(command, kept=KEPT)
def main(argv: list[str] | None = None) -> int:
    """Entry point. Returns 0 if all parts passed, 1 if one failed or was not run, 2 without a GPU."""
    args = command_lines.gpu_check(argv)
    if not args.cpu and not torch.cuda.is_available():
        print(f"error: {NO_GPU}", file=sys.stderr)
        return 2
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # for the parts: nothing here needs the Hub
    if not args.cpu:
        see_one_gpu()
    folder = args.out or Path("runs/gpu_check") / ("cpu" if args.cpu else "card")
    with as_bad_input():
        folder.mkdir(parents=True, exist_ok=True)
    here = describe_machine(args.cpu)
    made_with = {"code": hash_code(), "device": here["device"], **here["versions"]}
    failed, left = run_parts(args.parts, args.cpu, folder, made_with, args.minutes, args.again)
    where = folder / "page.md"
    where.write_text(page(folder, here))
    if not args.cpu and (ROOT / "docs").is_dir() and (ROOT / "Makefile").is_file():
        where = publish(folder, ROOT, here)
    print(f"Wrote {where}; numbers are in {folder}")
    for name in failed:
        print(f"FAILED {name}")
    if left:
        print(f"Not run, because time was up: {', '.join(left)}. Run the same command again to continue.")
    return 1 if failed or left else 0


if __name__ == "__main__":
    sys.exit(main())
