"""
Check that memory does not grow over steps, and count kernel launches and synchronizations:
`python -m trl_prorl.eval.gpucheck.steps`.

Variant A samples, scores and trains for a few steps, always on the same batch, so every step should need the same
memory. torch's profiler counts the launches and waits of two micro-batches. The counts per token are the difference
between two rollouts, divided by the difference of their lengths.
"""

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import mean

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import TrainerCallback

from trl_prorl.eval.gpucheck.rollouts import sample_tokens
from trl_prorl.eval.readiness.memory import process_share
from trl_prorl.eval.stepcost.settings import ARMS, Batches, parse
from trl_prorl.eval.stepcost.trainers import make_trainer, silence_training
from trl_prorl.record.run_files import METRICS, METRICS_FILE, read_jsonl


NAME = "A"
ITERATIONS = 2
TRAINED = 6  # steps
GROWTH = "memory does not grow"
TOLERANCE = 1.0  # MiB of growth
LENGTHS = (8, 24)  # tokens of the two rollouts
LAUNCHES = (
    *("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx"),
    *("cudaMemcpyAsync", "cudaMemsetAsync"),
)
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")


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


def count_calls(counts: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Count launches and waits among CUDA calls, given as pairs of name and count."""
    found = {"launches": 0, "waits": 0}
    for name, number in counts:
        if name in LAUNCHES:
            found["launches"] += number
        elif name in WAITS:
            found["waits"] += number
    return found


def profile_call(call: Callable, *args, **kwargs) -> tuple[object, dict[str, int]]:
    """Call a function. Return its result, and its launches and waits; 0 without a GPU."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        result = call(*args, **kwargs)
    return result, count_calls((event.key, event.count) for event in profiler.key_averages())


def profile_micro_batches(trainer, numbers: Iterable[int]) -> list[dict[str, int]]:
    """Profile these micro-batches of a training, counted from 0. Return the list that will contain the counts."""
    train = trainer.training_step
    found = []
    number = -1

    def training_step(*args, **kwargs):
        nonlocal number
        number += 1
        if number not in numbers:
            return train(*args, **kwargs)
        result, counts = profile_call(train, *args, **kwargs)
        found.append(counts)
        return result

    trainer.training_step = training_step
    return found


def measure(args: argparse.Namespace) -> dict:
    """Train the steps. Return `numbers` by name, and `failed` with the failed checks."""
    batches = SameBatch(args, 1.0, fixed=args.longest)
    in_step = args.prompts * args.num_generations // args.micro_batch
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), silence_training():
        warnings.simplefilter("ignore")
        trainer = make_trainer(NAME, ARMS["A packed"], args, batches, ITERATIONS, True, folder)
        prompts, _ = batches.draw(0)
        drawn = trainer.rollout_func

        def rollout(*inputs):
            sample_tokens(trainer, prompts, args.longest)
            return drawn(*inputs)

        trainer.rollout_func = rollout
        trainer.args.max_steps = TRAINED
        held = HeldMemory(trainer.accelerator.device)
        trainer.add_callback(held)
        # Profile the first and a later pass over the second batch, but not the first micro-batch of a step.
        profiled = profile_micro_batches(trainer, [2 * in_step + 1, 3 * in_step + 1])
        trainer.train()
        rollouts = [profile_call(sample_tokens, trainer, prompts, length)[1] for length in LENGTHS]
        rows = read_jsonl(Path(folder, NAME, METRICS_FILE), METRICS)
    counts = None
    if args.device == "cuda":
        counts = name_counts(profiled, rollouts)
    return summarise(rows, held.after_steps, counts)


def name_counts(profiled: list[dict[str, int]], rollouts: list[dict[str, int]]) -> dict[str, float]:
    """Return launches and waits per micro-batch and per token, by name."""
    numbers = {}
    shorter, longer = rollouts
    for name in ("launches", "waits"):
        numbers[f"{NAME}: {name} of a micro-batch"] = mean(counts[name] for counts in profiled)
        numbers[f"{NAME}: {name} of a token"] = (longer[name] - shorter[name]) / (LENGTHS[1] - LENGTHS[0])
    return numbers


def summarise(rows: list[Mapping[str, float]], after_steps: list[float], counts: dict[str, float] | None) -> dict:
    """
    Return the measurements by name. On a GPU, where `counts` and peak memory exist, check that memory does not grow.
    """
    growth = after_steps[-1] - after_steps[1]  # everything is allocated within the first two steps
    numbers = {f"{NAME}: growth of the memory between steps, MiB": growth}
    failed = {}
    if counts is not None:
        numbers |= counts
        numbers[f"{NAME}: peak memory of a step, GiB"] = max(row["peak_memory_gib"] for row in rows)
        if growth > TOLERANCE:
            failed[GROWTH] = f"{growth:.1f} MiB more are in use after the last step than after the second"
    return {"numbers": numbers, "failed": failed}


def main(argv: list[str] | None = None) -> None:
    """Entry point. Accepts the size options of `step-cost`; `--longest` is the length of every completion."""
    args = parse(argv)
    found = measure(args)
    print(json.dumps(found))
    args.out.mkdir(parents=True, exist_ok=True)
    Path(args.out, "measured.json").write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    sys.exit(main())
