"""Rounds of all arms in turns, and the medians of their stages."""

import functools
import statistics
import tempfile
import warnings
from collections import defaultdict

from trl_prorl.eval.stepcost.arms import FLOOR
from trl_prorl.eval.stepcost.batches import Batches
from trl_prorl.eval.stepcost.floor import Floor
from trl_prorl.eval.stepcost.generating import generation_seconds
from trl_prorl.eval.stepcost.making import make_trainer, silent
from trl_prorl.eval.stepcost.tables import ROUNDS


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
            name: Floor(args, batches, iterations)
            if arm is None
            else make_trainer(name, arm, args, batches, iterations, checkpointing, folder)
            for name, arm in arms.items()
        }
        order = list(trainers)
        for number in range(args.rounds + 1):
            # In turns, and not always in the same order.
            for name in order[number % len(order) :] + order[: number % len(order)]:
                trainer = trainers[name]
                times = trainer.generation_seconds if name == FLOOR else functools.partial(generation_seconds, trainer)
                generation = times(batches, number) if generate else 0.0
                trainer.watch.begin()
                with silent():
                    trainer.train()
                if number == 0:
                    continue  # the first round warms up
                seconds = trainer.watch.seconds
                rounds[name]["scoring"].append(seconds["scoring"] / iterations)
                rounds[name]["update"].append((seconds["step"] - seconds["scoring"]) / iterations)
                rounds[name]["phase"].append(seconds["step"] / iterations)
                rounds[name]["generation"].append(generation / iterations)
                rounds[name]["generated"].append(generation / iterations)
                rounds[name]["whole"].append((generation + seconds["step"]) / iterations)
                if (peak := trainer.watch.peak()) is not None:
                    rounds[name]["peak"].append(peak - trainer.watch.held)  # the models of all arms are there
    result = {}
    for name, values in rounds.items():
        result[name] = {key: statistics.median(values[key]) for key in ("generation", "scoring", "update")}
        result[name] |= {key: values[key] for key in ROUNDS.values()}
        if "peak" in values:
            result[name]["peak"] = max(values["peak"])
    return result
