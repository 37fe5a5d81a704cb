"""
Check that memory does not grow over steps: `python -m trl_prorl.eval.gpucheck.steps`.

Variant A samples, scores and trains for a few steps, always on the same batch, so every step should need the same
memory.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping

import torch
from transformers import TrainerCallback

from trl_prorl.eval.gpucheck.rollouts import sample_tokens
from trl_prorl.eval.readiness.memory import process_share
from trl_prorl.eval.stepcost.settings import Batches, parse
from trl_prorl.eval.stepcost.trainers import make_trainer, silence_training
from trl_prorl.run_files import METRICS_FILE, read_jsonl


NAME = "A"
ITERATIONS = 2
TRAINED = 6  # steps
GROWTH = "memory does not grow"
TOLERANCE = 1.0  # MiB of growth


class SameBatch(Batches):
    """Prompts and completions that are the same in every generation batch."""

    def draw(self, number: int) -> tuple[list[list[int]], list[list[int]]]:
        return super().draw(0)


class HeldMemory(TrainerCallback):
    """Record the MiB in use after each step: GPU memory, or process memory without a GPU."""

    def __init__(self, device: torch.device):
        self.device = device
        self.after_steps: list[float] = []

    def on_step_end(self, args, state, control, **kwargs):
        held, _ = process_share(self.device)
        self.after_steps.append(held / 2**20)


def measure(args: argparse.Namespace) -> dict:
    """Train the steps. Return `numbers` by name, and `failed` with the failed checks."""
    batches = SameBatch(args, length=args.longest)
    with tempfile.TemporaryDirectory() as folder, silence_training():
        trainer = make_trainer("A packed", args, batches, ITERATIONS, folder)
        prompts, _ = batches.draw(0)
        drawn = trainer.rollout_func

        def rollout(*inputs):
            sample_tokens(trainer, prompts, args.longest)
            return drawn(*inputs)

        trainer.rollout_func = rollout
        trainer.args.max_steps = TRAINED
        held = HeldMemory(trainer.accelerator.device)
        trainer.add_callback(held)
        trainer.train()
        rows = read_jsonl(trainer.run_dir / METRICS_FILE)
    return summarise(rows, held.after_steps, on_gpu=args.device == "cuda")


def summarise(rows: list[Mapping[str, float]], after_steps: list[float], on_gpu: bool) -> dict:
    """Return the measurements by name. On a GPU, check that memory does not grow."""
    growth = after_steps[-1] - after_steps[1]  # everything is allocated within the first two steps
    numbers = {f"{NAME}: growth of the memory between steps, MiB": growth}
    failed = {}
    if on_gpu:
        numbers[f"{NAME}: peak memory of a step, GiB"] = max(row["peak_memory_gib"] for row in rows)
        if growth > TOLERANCE:
            failed[GROWTH] = f"{growth:.1f} MiB more are in use after the last step than after the second"
    return {"numbers": numbers, "failed": failed}


def main(argv: list[str] | None = None) -> None:
    """Entry point. Accepts the size options of `step-cost`; `--longest` is the length of every completion."""
    args = parse(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "measured.json").write_text(json.dumps(measure(args)) + "\n")


if __name__ == "__main__":
    sys.exit(main())
