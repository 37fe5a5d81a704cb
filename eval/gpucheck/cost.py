"""The cost of a step by `eval.stepcost`, generation included: every arm alone on the device, on the same batches."""

import importlib.util
import shutil
import statistics
import time
from argparse import Namespace
from functools import partial
from pathlib import Path

import torch
from accelerate.utils.memory import clear_device_cache

from trl_prorl.embedded.making import byte_tokenizer
from trl_prorl.eval.gpucheck.parts import Result, Size, Table
from trl_prorl.eval.stepcost.measuring import measure
from trl_prorl.eval.stepcost.settings import ARMS, BASELINE, Batches, new_model
from trl_prorl.eval.stepcost.tables import ratio


# At other settings than the first: TRL with a reference, and the fastest of A and B.
MAIN_ARMS = (BASELINE, "A packed", "B packed")
TITLES = ("generation, s", "scoring, s", "update, s", "whole step, s", "update phase ×", "whole step ×")
COLUMNS = ["arm", *TITLES, "tokens/s", "peak of the update above the model, GiB"]
NOTE = (
    f"Seconds of an optimizer step, medians; scoring and update are the update phase. ×: times as fast as {BASELINE}. "
    "Tokens are those of completions. B optimises a different objective from A's and TRL's."
)
VLLM_MEMORY = 0.4  # share of the GPU that vLLM may take


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


def vllm(size: Size, folder: Path) -> Result:
    """Seconds of vLLM for the completions of the first setting of `cost`; merged weights in place of LoRA."""
    if not size.on_card or importlib.util.find_spec("vllm") is None:
        return Result(skipped={"vLLM": "vllm is not installed" if size.on_card else "needs a GPU"})
    from vllm import LLM, SamplingParams

    shape, ((scale, iterations), *_) = size.models[0]
    args = size.arguments(shape=shape)
    drawn = [Batches(args, scale).draw(number) for number in range(args.rounds + 1)]
    longest = max(len(prompt) + len(ids) for batch in drawn for prompt, ids in zip(*batch, strict=True))
    # Made on the CPU: vLLM's own processes begin with a GPU that this one has not used.
    model = new_model(Namespace(**vars(args) | {"device": "cpu"}), byte_tokenizer())
    model.save_pretrained(folder / "weights")
    seconds, plain = [], {"ignore_eos": True, "temperature": 1.0, "detokenize": False}
    try:
        engine = LLM(
            model=str(folder / "weights"),
            skip_tokenizer_init=True,
            gpu_memory_utilization=VLLM_MEMORY,
            max_model_len=longest + 2,
            seed=0,
        )
        for prompts, completions in drawn:
            settings = [SamplingParams(max_tokens=max(2, len(ids)), **plain) for ids in completions]
            began = time.perf_counter()
            engine.generate([{"prompt_token_ids": ids} for ids in prompts], settings, use_tqdm=False)
            seconds.append((time.perf_counter() - began) / iterations)
    except Exception as problem:  # of whatever kind: it is not our code
        return Result(
            skipped={"vLLM": f"fails here: {type(problem).__name__}: {' '.join(str(problem).split())[:160]}"}
        )
    finally:
        shutil.rmtree(folder / "weights")
    title = f"{shape}, {scale:g}× gold answers, μ={iterations}, {args.prompts} prompts × {args.num_generations}"
    # The first batch warms up.
    return Result(tables=[Table(title, ["engine", "generation, s"], [["vLLM", statistics.median(seconds[1:])]])])
