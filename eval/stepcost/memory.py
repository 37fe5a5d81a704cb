"""Peak memory of every arm, each in a process of its own."""

import argparse
import multiprocessing
import resource
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor

from rich.progress import track

from trl_prorl.eval.stepcost.arms import ARMS, FLOOR, FP32_ARMS, settings
from trl_prorl.eval.stepcost.generating import generation_seconds
from trl_prorl.eval.stepcost.making import make_trainer, silent


def peak_memory(name: str, args: argparse.Namespace, setting: tuple) -> float:
    """
    GiB by which one arm's training raises the peak of memory, of the GPU's where it trains on one, else of its
    process's resident memory; for a process of its own.
    """
    _, batches, iterations, checkpoint, generate = setting
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = make_trainer(name, (ARMS | FP32_ARMS)[name], args, batches, iterations, checkpoint, folder)
        trainer.watch.begin()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if generate:
            generation_seconds(trainer, batches, 0)
            trainer.watch.peak()  # before a step lets the device count anew
        with silent():
            trainer.train()
        if (peak := trainer.watch.peak()) is not None:
            return peak - trainer.watch.held
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20


def memory(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """By setting and arm the peak memory, each arm in a process of its own."""
    results = {}
    for title, *setting in settings(args):
        results[title] = {}
        for name in track([name for name in setting[0] if name != FLOOR], description=title):
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                results[title][name] = pool.submit(peak_memory, name, args, ({}, *setting[1:])).result()
    return results
