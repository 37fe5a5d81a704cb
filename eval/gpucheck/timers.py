"""Right: a stage's seconds hold what the device did in it, and a step's peak memory is that of the step."""

from pathlib import Path

import torch

from trl_prorl import ProRLTrainer
from trl_prorl.eval.gpucheck.clock import seconds_of
from trl_prorl.eval.gpucheck.controls import TRAINED
from trl_prorl.eval.gpucheck.parity import EVERY, PACKED
from trl_prorl.eval.gpucheck.result import Result
from trl_prorl.eval.gpucheck.size import Size
from trl_prorl.eval.gpucheck.training import train
from trl_prorl.eval.stepcost.batches import Batches
from trl_prorl.record.meter import StageTimer, gpu_row


STAGES = ("rollout", "old", "ref", "base", "update", "reset")


def timers(size: Size, folder: Path) -> Result:
    """Stages of work that runs on without Python; stages of a step; memory of a step."""
    result = Result()
    if size.on_card:
        _stages_wait(result, size)
        _memory_begins_anew(result)
    else:
        result.skipped["stages wait for the device"] = "needs a GPU"
        result.skipped["peak memory begins anew"] = "needs a GPU"
    args = size.arguments(
        dtype=torch.float32, shape=size.small, prompts=2, num_generations=4, micro_batch=8, longest=24
    )
    rows = train((ProRLTrainer, EVERY | PACKED | TRAINED), args, Batches(args, 1.0), 2).rows
    # What no stage claims is `update`, so together they are the step.
    shares = [sum(row[f"time_{stage}"] for stage in STAGES) + row["time_meter"] for row in rows]
    shares = [total / row["time_step"] for total, row in zip(shares, rows, strict=True)]
    result.check("the stages are the step", all(0.95 <= share <= 1.05 for share in shares), f"shares {shares}")
    there = [row["time_ref"] > 0.0 for row in rows]
    by_hand = [True, False, True, False, True]
    result.check("the reference takes time where it is computed", there == by_hand, f"{there}, by hand {by_hand}")
    return result


def _stages_wait(result: Result, size: Size) -> None:
    matrix = torch.randn(4096, 4096, device=size.device)

    def work():
        product = matrix
        for _ in range(20):
            product = product @ matrix
        return product

    work()
    alone = seconds_of(work, size)
    timer = StageTimer(torch.device(size.device))
    with timer.stage("works"):
        work()  # returns at once; the device works on
    with timer.stage("idles"):
        pass
    works, idles = timer.seconds["works"], timer.seconds["idles"]
    right = works > 0.5 * alone and idles < 0.1 * alone
    found = f"{works:.4f} s of {alone:.4f} s in the stage that began the work, {idles:.4f} s in the next"
    result.check("stages wait for the device", right, found)


def _memory_begins_anew(result: Result) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    gpu_row(device)
    large = torch.empty(2**30, dtype=torch.uint8, device=device)
    with_it = gpu_row(device)["peak_memory_gib"]
    del large
    gpu_row(device)  # the peak of a step in which it was still there at the beginning
    without = gpu_row(device)["peak_memory_gib"]
    right = 0.99 < with_it - without < 1.01
    result.check("peak memory begins anew", right, f"{with_it:.3f} GiB with a tensor of 1 GiB, then {without:.3f} GiB")
