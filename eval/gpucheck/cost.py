"""The cost of a step by `eval.stepcost`, generation included: every arm alone on the device, on the same batches."""

import statistics
from functools import partial
from pathlib import Path

import torch
from accelerate.utils.memory import clear_device_cache

from trl_prorl.eval.gpucheck.parts import Result, Size, Table
from trl_prorl.eval.stepcost.measuring import measure
from trl_prorl.eval.stepcost.settings import ARMS, BASELINE, Batches
from trl_prorl.eval.stepcost.tables import ratio


# At other settings than the first: TRL with a reference, and the fastest of A and B.
MAIN_ARMS = (BASELINE, "A packed", "B packed")
TITLES = ("generation, s", "scoring, s", "update, s", "whole step, s", "update phase ×", "whole step ×")
COLUMNS = ["arm", *TITLES, "tokens/s", "peak of the update above the model, GiB"]
NOTE = (
    f"Seconds of an optimizer step, medians; scoring and update are the update phase. ×: times as fast as {BASELINE}. "
    "Tokens are those of completions. B optimises a different objective from A's and TRL's."
)


def cost(size: Size, folder: Path, place: int = 0) -> Result:
    """All settings of the model at this place."""
    if place >= len(size.models):
        return Result(skipped={"the larger model": "at a CPU's size there is one"})
    result, (shape, settings) = Result(), size.models[place]
    args = size.arguments(shape=shape)
    for scale, iterations in settings:
        setting, batches, rows = f"{shape}, {scale:g}× gold answers, μ={iterations}", Batches(args, scale), {}
        first = place == 0 and (scale, iterations) == settings[0]
        for name in ARMS if first else MAIN_ARMS:
            if size.no_time:
                result.skipped[f"{setting}, {name}"] = "no time was left in this part"
                continue
            try:
                rows |= measure({name: ARMS[name]}, args, batches, iterations, False, generate=True)
            except torch.OutOfMemoryError:
                result.skipped[f"{setting}, {name}"] = "out of memory"
            clear_device_cache(garbage_collection=True)
        title = f"{setting}, {args.prompts} prompts × {args.num_generations}"
        tokens = [sum(map(len, batches.draw(number)[1])) for number in range(1, args.rounds + 1)]
        result.tables.append(Table(title, COLUMNS, [row(rows, name, tokens) for name in rows], NOTE))
        result.facts[title] = rows
    return result


cost_large = partial(cost, place=1)


def row(results: dict[str, dict], name: str, tokens: list[int]) -> list:
    """An arm's row of `COLUMNS`; `tokens` are the completions' in every round."""
    mine = results[name]
    seconds = [mine[stage] for stage in ("generation", "scoring", "update")] + [statistics.median(mine["whole"])]
    ratios = [ratio(results, name, rounds=kind)[0] if BASELINE in results else None for kind in ("phase", "whole")]
    rate = statistics.median(count / took for count, took in zip(tokens, mine["whole"], strict=True))
    return [name, *seconds, *ratios, rate, mine.get("peak")]
