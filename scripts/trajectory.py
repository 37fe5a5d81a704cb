"""
The first steps of every arm of `recipes/tiny`, on one thread: loss, gradient norm, KL and reward of each step, to the
bit, and the CPU seconds of a step. compare_commits.py runs it for two commits.

    python scripts/trajectory.py --arms variantA --steps 60
"""

import argparse
import json
import multiprocessing
import os
import re
import time
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory


os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import torch  # noqa: E402


CAPABILITY = torch.backends.cpu.get_cpu_capability()
# The other libraries' paths are fixed, too, so that the bits depend on the instruction set and not on the processor.
ONEDNN = {"AVX512": "AVX512_CORE"}.get(CAPABILITY, CAPABILITY)
os.environ |= {"MKL_CBWR": CAPABILITY, "ONEDNN_MAX_CPU_ISA": ONEDNN}

import trl_prorl  # noqa: E402, F401
from trl_prorl.run.log_files import METRICS_FILE, read_log  # noqa: E402
from trl_prorl.train import build, parse_recipe, train  # noqa: E402


ARMS = ("plain", "control", "variantA", "variantB", "variantC")
RECIPES = Path(trl_prorl.__file__).resolve().parents[1] / "recipes" / "tiny"
SMALL = {"per_device_train_batch_size": 16, "num_generations": 4, "train_rows": 80, "logging_steps": 1}
COLUMNS = ("grad_norm", "kl_ref", "kl_old", "reward")


def first_steps(arm: str, steps: int) -> dict[str, list[float]]:
    """Values of every step by column, and `cpu_seconds`; a reset lies among them where an arm has any."""
    with TemporaryDirectory() as folder:
        keys = {**SMALL, "max_steps": steps, "output_dir": f"{folder}/run", "report_to": "none", "disable_tqdm": True}
        if arm in ("variantA", "variantC"):
            keys["ref_reset_every"] = 6
        argv = [text for key, value in keys.items() for text in (f"--{key}", str(value))]
        trainer, resume = build(*parse_recipe(["--config", str(RECIPES / f"{arm}.yaml"), *argv]))
        begin = time.process_time()
        train(trainer, resume)
        seconds = (time.process_time() - begin) / steps
        rows = read_log(Path(folder, "run"), METRICS_FILE)
    columns = {name: [row[name] for row in rows] for name in COLUMNS if name in rows[0]}
    return {
        "loss": [row["loss"] for row in trainer.state.log_history if "loss" in row],
        **columns,
        "cpu_seconds": [seconds],
    }


def trajectories(arms: list[str], steps: int) -> dict[str, dict[str, list[float]]]:
    """[`first_steps`] of each arm, in a process of its own, so that nothing is left from the arm before."""
    context = multiprocessing.get_context("fork")
    with context.Pool(1, maxtasksperchild=1) as pool:
        found = pool.starmap(first_steps, [(arm, steps) for arm in arms], chunksize=1)
    return dict(zip(arms, found, strict=True))


def made_with() -> dict[str, str]:
    """What decides the bits: libraries, instruction set, and the processor's maker, by which MKL chooses its code."""
    cpu = Path("/proc/cpuinfo")
    vendor = re.search(r"vendor_id\s*:\s*(\S+)", cpu.read_text() if cpu.exists() else "")
    found = {name: version(name) for name in ("torch", "trl", "transformers", "peft")}  # of torch, with its build
    found["cpu"] = vendor[1] if vendor else "?"
    found["instructions"] = CAPABILITY
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, help="a file to write")
    args = parser.parse_args()
    found = trajectories(args.arms, args.steps)
    content = json.dumps({"made_with": made_with(), **found}, indent=1)
    if args.out is None:
        print(content)
    else:
        args.out.write_text(content)


if __name__ == "__main__":
    main()
