"""Time all variants in turns and take the median of each stage; measure the peak memory of each variant alone."""

import argparse
import multiprocessing
import resource
import statistics
import tempfile
import warnings
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor

from rich.progress import track

from trl_prorl.eval.stepcost.settings import ARMS, MORE_ARMS, Batches, settings
from trl_prorl.eval.stepcost.tables import ROUNDS
from trl_prorl.eval.stepcost.tokens import count_tokens
from trl_prorl.eval.stepcost.trainers import make_trainer, silence_training


def measure(
    arms: dict, args, batches: Batches, iterations: int, checkpointing: bool, generate: bool
) -> dict[str, dict]:
    """
    Run the variants in turns.

    Returns:
        `dict[str, dict]`: for each variant the median seconds of `generation`, `scoring` and `update` per optimizer
        step, the seconds of every round for the keys in `ROUNDS`, and on a GPU the `peak` memory of the update phase
        in GiB, above the memory that was allocated before it.
    """
    rounds = {name: defaultdict(list) for name in arms}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainers = {
            name: make_trainer(name, arm, args, batches, iterations, checkpointing, folder)
            for name, arm in arms.items()
        }
        order = list(trainers)
        for number in range(args.rounds + 1):
            # Rotate the order between rounds.
            first = number % len(order)
            for name in order[first:] + order[:first]:
                trainer = trainers[name]
                generation = trainer.generation_seconds(batches, number) if generate else 0.0
                trainer.watch.begin()
                with silence_training():
                    trainer.train()
                if number == 0:
                    continue  # warm-up
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


def peak_memory(name: str, args: argparse.Namespace, setting: tuple) -> float:
    """
    Return the GiB by which the training of one variant raises peak memory: GPU memory if it trains on a GPU, otherwise
    the resident memory of its process. Call it in a separate process.
    """
    _, batches, iterations, checkpoint, generate = setting
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = make_trainer(name, (ARMS | MORE_ARMS)[name], args, batches, iterations, checkpoint, folder)
        trainer.watch.begin()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if generate:
            trainer.generation_seconds(batches, 0)
            trainer.watch.peak()  # note it before a step resets the device's counter
        with silence_training():
            trainer.train()
        peak = trainer.watch.peak()
        if peak is not None:
            return peak - trainer.watch.held
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20


def memory(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Measure the peak memory by setting and variant, each variant in a separate process."""
    results = {}
    for title, *setting in settings(args):
        results[title] = {}
        for name in track(list(setting[0]), description=title):
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                results[title][name] = pool.submit(peak_memory, name, args, ({}, *setting[1:])).result()
    return results
