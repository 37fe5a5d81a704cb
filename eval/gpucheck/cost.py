"""The cost of a step by stage: every arm alone on the device, with the same weights and the same batches."""

import contextlib
import io
import statistics
import tempfile
import warnings
from argparse import Namespace
from functools import partial
from pathlib import Path

import torch

from trl_prorl.eval.gpucheck import flops
from trl_prorl.eval.gpucheck.clock import begin_memory, free
from trl_prorl.eval.gpucheck.machine import matmul_rate
from trl_prorl.eval.gpucheck.result import Result, Sheet
from trl_prorl.eval.gpucheck.size import Size
from trl_prorl.eval.gpucheck.stages import STAGES, of_a_step, watch_scoring
from trl_prorl.eval.gpucheck.training import lines
from trl_prorl.eval.stepcost.arms import ARMS, BASELINE
from trl_prorl.eval.stepcost.batches import Batches
from trl_prorl.eval.stepcost.making import make_trainer


# At other settings than the first: with a reference by TRL, and the best of A and B.
MAIN_ARMS = (BASELINE, "A packed", "B packed")
COLUMNS = [
    *("arm", "old, s", "reference, s", "update, s", "other, s", "whole, s", "× as fast as TRL β>0"),
    *("tokens/s", "reference, %", "MFU, % of a matmul's rate", "peak GiB", "above the model GiB"),
]


def cost(size: Size, folder: Path, shape: str) -> Result:
    """All settings of a shape, and what a reset takes."""
    result = Result()
    dtype = torch.bfloat16 if size.on_card else torch.float32
    args = size.arguments(dtype=dtype, shape=shape)
    rate = matmul_rate(size)
    smallest = shape == size.shapes[0]
    for place, (scale, iterations) in enumerate(size.settings if smallest else size.settings[:2]):
        first = place == 0 and smallest
        arms = {name: arm for name, arm in ARMS.items() if first or name in MAIN_ARMS}
        rows = {}
        for name, arm in arms.items():
            left_out = f"{shape}, {scale:g}× gold answers, μ={iterations}, {name}"
            if (reason := size.no_time) is not None:
                result.skipped[left_out] = reason
                continue
            try:
                rows[name] = of_arm(name, arm, args, scale, iterations, size, rate)
            except torch.OutOfMemoryError:
                result.skipped[left_out] = "out of memory"
            free(size)
        title = f"{shape}, {scale:g}× gold answers, μ={iterations}, {args.prompts} prompts × {args.num_generations}"
        result.sheets.append(Sheet(f"Cost of an update phase: {title}", COLUMNS, table(rows), NOTE))
        result.facts[title] = rows
    result.sheets.append(reset_sheet(result, shape, args, size))
    return result


NOTE = (
    "Seconds of an optimizer step without generation, medians. Tokens are those of completions in the loss. MFU "
    "counts the operations that a step needs, prompts once and no padding, over those that a large bf16 product "
    "reaches here. B optimises a different objective from A's and TRL's."
)


def table(rows: dict[str, dict]) -> list[list]:
    """Rows of `COLUMNS`."""
    baseline = rows.get(BASELINE, {}).get("step")
    return [
        [
            name,
            *(row[stage] for stage in (*STAGES, "step")),
            baseline / row["step"] if baseline else None,
            row["tokens_per_second"],
            100 * row["reference"] / row["step"],
            100 * row["mfu"],
            row["peak_gib"],
            row["above_gib"],
        ]
        for name, row in rows.items()
    ]


def of_arm(name: str, arm: tuple, args: Namespace, scale: float, iterations: int, size: Size, rate: float) -> dict:
    """One arm's medians over rounds, of a generation batch and its updates each."""
    batches, found = Batches(args, scale), []
    with quiet_folder() as folder:
        trainer = make_trainer(name, arm, args, batches, iterations, False, folder)
        watch_scoring(trainer)
        for number in range(args.rounds + 1):
            trainer.watch.begin()
            held = begin_memory(size)
            trainer.train()
            if number:  # the first round warms up: kernels are chosen and compiled, the optimizer makes its state
                peaks = trainer.watch.peak(), held
                found.append((of_a_step(trainer, iterations), needed(args, batches, number, name, iterations), peaks))
    # Every round has a batch of its own, so that what is divided by a round's seconds is that round's.
    seconds = {stage: statistics.median(stages[stage] for stages, _, _ in found) for stage in (*STAGES, "step")}
    return seconds | {
        "tokens_per_second": statistics.median(work["tokens"] / stages["step"] for stages, work, _ in found),
        "mfu": statistics.median(work["operations"] / stages["step"] / rate for stages, work, _ in found),
        "peak_gib": max(peak for *_, (peak, _) in found) if size.on_card else None,
        "above_gib": max(peak - held for *_, (peak, held) in found) if size.on_card else None,
    }


def needed(args: Namespace, batches: Batches, number: int, name: str, iterations: int) -> dict[str, float]:
    """Completion tokens and operations of an optimizer step on the batch of this number."""
    prompts, completions = batches.draw(number)
    one = flops.work(args.shape, prompts, completions)
    cls, keys = ARMS[name]
    # A forward of the reference for every batch; one of the old policy unless the first pass gives it, or no second
    # pass needs it.
    forwards = (keys.get("beta", 0.0) != 0.0) + (iterations > 1 and not keys.get("reuse_old_logps", False))
    operations = flops.update(one, lora=args.rank > 0) + forwards * one.forward / iterations
    return {"tokens": sum(map(len, completions)), "operations": operations}


def reset_sheet(result: Result, shape: str, args: Namespace, size: Size) -> Sheet:
    """What one reset takes, of the reference alone and with Adam's state."""
    rows = []
    for name in ("A packed", "C packed"):
        if (reason := size.no_time) is not None:
            result.skipped[f"{shape}, a reset of {name}"] = reason
            continue
        try:
            resets = resets_of(name, args)
            means = [statistics.mean(event[key] for event in resets) for key in ("seconds_copy", "seconds_optimizer")]
            rows.append([name, len(resets), *(1e3 * mean for mean in means)])
        except torch.OutOfMemoryError:
            result.skipped[f"{shape}, a reset of {name}"] = "out of memory"
        free(size)
    return Sheet(f"A reset: {shape}, LoRA r={args.rank}", ["arm", "resets", "reference, ms", "optimizer, ms"], rows)


def resets_of(name: str, args: Namespace) -> list[dict]:
    """Events of an arm's resets, after the first, which warms up."""
    cls, keys = ARMS[name]
    with quiet_folder() as folder:
        short = (cls, keys | {"ref_reset_every": 2, "max_steps": 8})
        make_trainer(name, short, args, Batches(args, 1.0), 2, False, folder).train()
        events = lines(Path(folder, name.replace(" ", "_"), "events.jsonl"))
    return [event for event in events if event["event"] == "reset"][1:]


@contextlib.contextmanager
def quiet_folder():
    """A folder that is thrown away, with nothing on the terminal meanwhile."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield folder


def cost_of(place: int):
    """The part of a shape, by its place among the size's; a size with fewer has nothing to measure there."""
    return partial(_of_place, place=place)


def _of_place(size: Size, folder: Path, place: int) -> Result:
    if place < len(size.shapes):
        return cost(size, folder, size.shapes[place])
    return Result(skipped={"the larger model": "at a CPU's size there is one"})
