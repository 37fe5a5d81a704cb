"""What was measured on a card beside what was predicted for it, and whether it refutes the prediction."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from trl_prorl.eval.gpucheck.cards import Card
from trl_prorl.eval.gpucheck.counts import ARMS, Counts, Rows
from trl_prorl.eval.gpucheck.predictions import LARGE, QWEN, RECIPE, Prediction


STEP_COST_NAMES = {"TRL β>0": "TRL with a reference", "A packed": "A", "B packed": "B"}
STAGES = ("generation", "scoring", "update")
MORE_LAUNCHES = 1.25  # an operator may be several kernels


class Range(NamedTuple):
    """The least and the most that confirms a prediction."""

    least: float
    most: float = math.inf

    def verdict(self, measured: float) -> str:
        return "confirmed" if self.least <= measured <= self.most else "refuted"


def predicted_ranges(card: Card, table: Rows) -> dict[str, Range]:
    """
    Return by name what is predicted of what `gpu-check` measures: of rollouts with the large batch, of all else at the
    size of the recipes. Seconds and memory are lower bounds. An operator is a launch, or a few; what waits on the
    pretended device need not wait on a card.
    """
    ranges = {}
    for arm in ARMS:
        counts = Counts(table, arm)
        recipe = Prediction(card, QWEN, RECIPE, counts)
        large = Prediction(card, QWEN, LARGE, counts)
        for stage in STAGES:
            ranges[f"{arm.name}: {stage} of a step, s"] = Range(recipe.seconds(stage))
        ranges[f"{arm.name}: a token of all rows, ms"] = Range(1000 * large.token.seconds)
        ranges[f"{arm.name}: a generation batch, s"] = Range(large.generation)
        ranges[f"{arm.name}: memory of a generation, GiB"] = Range(large.generation_memory)
        ranges[f"{arm.name}: peak memory of a step, GiB"] = Range(recipe.memory)
        for name, line in {"a token": counts.token, "a micro-batch": counts.micro_batch}.items():
            launches = line("launches").at(QWEN.layers)
            ranges[f"{arm.name}: launches of {name}"] = Range(launches, MORE_LAUNCHES * launches)
        ranges[f"{arm.name}: waits of a token"] = Range(0, counts.token_waits())
        ranges[f"{arm.name}: waits of a micro-batch"] = Range(0, counts.micro_batch("waits").at(QWEN.layers))
    first, *_ = ARMS
    of_trl = {
        name.replace(first.name, "TRL", 1): found for name, found in ranges.items() if name.startswith(first.name)
    }
    return ranges | of_trl


def measured_seconds(results: Mapping[str, Mapping[str, Mapping]]) -> dict[str, float]:
    """Name what `step-cost` has measured at the size of the recipes, by setting and arm, as the predictions do."""
    numbers = {}
    for arms in results.values():
        for name, values in arms.items():
            for stage in STAGES:
                numbers[f"{STEP_COST_NAMES[name]}: {stage} of a step, s"] = values[stage]
    return numbers
