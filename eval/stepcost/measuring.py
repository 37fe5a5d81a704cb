"""Time all variants in turns and take the median of each stage; measure the peak memory of each variant alone."""

import multiprocessing
import resource
import statistics
import tempfile
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor

from trl_prorl.eval.stepcost.settings import Batches
from trl_prorl.eval.stepcost.tables import ROUNDS
from trl_prorl.eval.stepcost.trainers import make_trainer, silence_training
from trl_prorl.launch.prompts import find_distinct


def measure(names: list[str], args, batches: Batches, iterations: int) -> dict[str, dict]:
    """
    Run the variants in turns.

    Returns:
        `dict[str, dict]`: for each variant the median seconds of `generation`, `scoring` and `update` per optimizer
        step, the seconds of every round for the keys in `ROUNDS`, and on a GPU the `peak` memory of the update phase
        in GiB, above the memory that was allocated before it.
    """
    rounds = {name: defaultdict(list) for name in names}
    with tempfile.TemporaryDirectory() as folder, silence_training():
        trainers = {name: make_trainer(name, args, batches, iterations, folder) for name in names}
        for number in range(args.rounds + 1):
            # Rotate the order between rounds.
            first = number % len(names)
            for name in names[first:] + names[:first]:
                trainer = trainers[name]
                generation = trainer.generation_seconds(batches, number)
                trainer.watch.begin()
                trainer.train()
                if number == 0:
                    continue  # warm-up; on a GPU also what cuDNN plans for every new length
                scoring = trainer.watch.seconds["scoring"]
                step = trainer.watch.seconds["step"]
                stages = {
                    "generated": generation,
                    "scoring": scoring,
                    "update": step - scoring,
                    "phase": step,
                    "whole": generation + step,
                }
                for stage, seconds in stages.items():
                    rounds[name][stage].append(seconds / iterations)
                peak = trainer.watch.peak()
                if peak is not None:
                    rounds[name]["peak"].append(peak - trainer.watch.held)  # the models of all variants are loaded
    result = {}
    for name, values in rounds.items():
        result[name] = {
            "generation": statistics.median(values["generated"]),
            "scoring": statistics.median(values["scoring"]),
            "update": statistics.median(values["update"]),
            **{key: values[key] for key in ROUNDS.values()},
        }
        if "peak" in values:
            result[name]["peak"] = max(values["peak"])
    return result


def tokens_per_step(args, batches: Batches, iterations: int) -> dict[str, list[float]]:
    """Return TRL's tokens of an optimizer step and those that are left, for each part of it: means of the rounds."""
    counted = defaultdict(list)
    for number in range(1, args.rounds + 1):
        for part, pair in count_tokens(*batches.draw(number), args.micro_batch, iterations).items():
            counted[part].append(pair)
    return {
        part: [statistics.mean(numbers) / iterations for numbers in zip(*pairs, strict=True)]
        for part, pairs in counted.items()
    }


def count_tokens(
    prompts: list[list[int]], completions: list[list[int]], micro_batch: int, iterations: int
) -> dict[str, tuple[int, int]]:
    """
    Count the tokens of one generation batch that pass through the model, for each part of a step.

    TRL computes rows of the widest prompt and the longest completion, in every part. What is left has no padding, each
    prompt once per forward, and no row after its end; the old policy's log-probabilities come from the first update.

    Args:
        prompts (`list[list[int]]`): A prompt for every completion; those of a group are equal.
        completions (`list[list[int]]`): The completions.
        micro_batch (`int`): Completions per forward with gradient.
        iterations (`int`): Updates of the batch.

    Returns:
        `dict[str, tuple[int, int]]`: TRL's tokens and those that are left, for `generation`, `old policy` (a forward),
        `reference` (a forward) and `update` (a forward and a backward pass).
    """
    rows = len(prompts)
    padded = rows * (max(map(len, prompts)) + max(map(len, completions)))
    written = sum(map(len, completions))

    def prompt_tokens(some: list[list[int]]) -> int:
        return sum(map(len, find_distinct(some)[0]))

    micro_batches = [prompts[first : first + micro_batch] for first in range(0, rows, micro_batch)]
    update = written + sum(map(prompt_tokens, micro_batches))
    return {
        "generation": (padded - rows, prompt_tokens(prompts) + written - rows),  # the last token is not read
        "old policy": (padded if iterations > 1 else 0, 0),
        "reference": (padded, prompt_tokens(prompts) + written),
        "update": (iterations * padded, iterations * update),
    }


def memory(names: list[str], args, batches: Batches, iterations: int) -> dict[str, float]:
    """Return the [`peak_memory`] of every variant, each measured in a separate process."""
    peaks = {}
    for name in names:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            peaks[name] = pool.submit(peak_memory, name, args, batches, iterations).result()
    return peaks


def peak_memory(name: str, args, batches: Batches, iterations: int) -> float:
    """
    Return the GiB by which the training of one variant raises peak memory: GPU memory if it trains on a GPU, otherwise
    the resident memory of its process.
    """
    with tempfile.TemporaryDirectory() as folder, silence_training():
        trainer = make_trainer(name, args, batches, iterations, folder)
        trainer.watch.begin()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        trainer.generation_seconds(batches, 0)
        trainer.watch.peak()  # note it before a step resets the device's counter
        trainer.train()
        peak = trainer.watch.peak()
    if peak is not None:
        return peak - trainer.watch.held
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
