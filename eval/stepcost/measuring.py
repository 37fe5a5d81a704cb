"""Rounds of all arms in turns with the medians of their stages, and the peak memory of each arm alone."""

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
from trl_prorl.eval.stepcost.trainers import make_trainer, silence_training


def measure(
    arms: dict, args, batches: Batches, iterations: int, checkpointing: bool, generate: bool
) -> dict[str, dict]:
    """
    Run the arms in turns.

    Returns:
        `dict[str, dict]`: by arm the median seconds of an optimizer step's `generation`, `scoring` and `update`, every
        round's seconds of what `ROUNDS` names, and on a GPU the `peak` memory of the update phase in GiB, beyond what
        is held before it.
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
            # In turns, and not always in the same order.
            first = number % len(order)
            for name in order[first:] + order[:first]:
                trainer = trainers[name]
                generation = trainer.generation_seconds(batches, number) if generate else 0.0
                trainer.watch.begin()
                with silence_training():
                    trainer.train()
                if number == 0:
                    continue  # the first round warms up
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
                    rounds[name]["peak"].append(peak - trainer.watch.held)  # the models of all arms are there
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


def peak_memory(name: str, args: argparse.Namespace, setting: tuple) -> float:
    """
    GiB by which one arm's training raises the peak of memory, of the GPU's where it trains on one, else of its
    process's resident memory; for a process of its own.
    """
    _, batches, iterations, checkpoint, generate = setting
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = make_trainer(name, (ARMS | MORE_ARMS)[name], args, batches, iterations, checkpoint, folder)
        trainer.watch.begin()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if generate:
            trainer.generation_seconds(batches, 0)
            trainer.watch.peak()  # before a step lets the device count anew
        with silence_training():
            trainer.train()
        peak = trainer.watch.peak()
        if peak is not None:
            return peak - trainer.watch.held
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20


def memory(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Measure the peak memory by setting and arm, each arm in a process of its own."""
    results = {}
    for title, *setting in settings(args):
        results[title] = {}
        for name in track(list(setting[0]), description=title):
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                results[title][name] = pool.submit(peak_memory, name, args, ({}, *setting[1:])).result()
    return results
