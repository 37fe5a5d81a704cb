"""Time, memory and throughput of a whole run from its first steps."""

import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

from trl_prorl.anchors import ANCHORS
from trl_prorl.config import ProRLConfig
from trl_prorl.eval.pages.table import percent
from trl_prorl.eval.readiness.finding import LOOK, STOP, Finding, make_finding
from trl_prorl.eval.readiness.first_steps import FirstSteps
from trl_prorl.eval.readiness.memory import USABLE


OF_GENERATION = ("rollout", *(anchor.name for anchor in ANCHORS))
STAGES = (*OF_GENERATION, "update")
SLOW_REWARD = 0.3  # share of a step
WALL_TIME = "wall time of"


def seconds_of_run(rows: Sequence[Mapping[str, float]], max_steps: int, steps_per_generation: float) -> float:
    """
    Return the wall time of a full run, without evaluations and checkpoints, from at least one row of `metrics.jsonl`.

    The cost of a generation is the time of rollout and anchors in the first row. The cost of a step is the rest of the
    last row, which has no warm-up. If a step contains whole generations, the last row is the cost of a step.
    """
    if steps_per_generation <= 1:
        return max_steps * rows[-1]["time_step"]
    generation = sum(rows[0].get(f"time_{stage}", 0.0) for stage in OF_GENERATION)
    step = rows[-1]["time_step"] - sum(rows[-1].get(f"time_{stage}", 0.0) for stage in OF_GENERATION)
    generations = -(-max_steps // steps_per_generation)
    return max_steps * step + generations * generation


def duration(seconds: float) -> str:
    """Return a time in its two largest units, such as `1 min 22 s` or `3 h 20 min`."""
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return "{} min {} s".format(*divmod(whole, 60))
    return "{} h {} min".format(*divmod(round(seconds / 60), 60))


def largest_micro_batch(held: float, per_row: float, total: float, group: int) -> int:
    """
    Return how many rows fit, in whole groups if one group fits; 0 if not even one row fits. `held` is the memory
    between steps, `per_row` that of a row, `total` all there is, in the same unit.
    """
    if per_row <= 0:
        return 0
    rows = max(0, int((USABLE * total - held) / per_row))
    return rows - rows % group if rows >= group else rows


def larger_micro_batch(now: int, fits: int, exchangeable: int) -> int:
    """
    Return the largest micro-batch that fits and keeps the rows of every update; `now` if none is larger.

    Args:
        now (`int`): Rows of a micro-batch.
        fits (`int`): Rows that fit.
        exchangeable (`int`): Micro-batches that can be merged into one without changing any update's gradient.
    """
    factors = [factor for factor in range(1, exchangeable + 1) if exchangeable % factor == 0 and now * factor <= fits]
    return now * max(factors, default=1)


def process_memory() -> tuple[float, float]:
    """Return the peak memory of this process so far, and the total memory of the machine, in GiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB on Linux
    return peak * unit / 2**30, psutil.virtual_memory().total / 2**30


def process_memory_finding(peak_gib: float, total_gib: float) -> Finding:
    """Return the finding about the memory of the first steps on a CPU, and of the machine, in GiB."""
    return make_finding(
        "peak memory of the process",
        f"{peak_gib:.1f} of {total_gib:.1f} GiB",
        peak_gib > USABLE * total_gib,
        "will not fit next to other programs: lower per_device_train_batch_size, or use a smaller model",
        peak_gib=peak_gib,
        total_gib=total_gib,
    )


def out_of_memory(micro_batch: int) -> Finding:
    """Return the finding about a run that does not fit."""
    change = (
        "the run does not fit: lower per_device_train_batch_size, max_completion_length, or compact_max_rows, or set "
        "gradient_checkpointing: true"
    )
    number = f"out of memory at per_device_train_batch_size: {micro_batch}"
    return Finding("memory", number, change, STOP, {"now": micro_batch})


@dataclass(frozen=True)
class BatchShape:
    """
    How the rows of a generation batch are computed.

    Attributes:
        micro_batch (`int`): Rows of a forward pass, `per_device_train_batch_size`.
        group (`int`): Completions of a prompt.
        completions (`int`): Completions of a generation batch.
        accumulation (`int`): Forward passes of an update, `gradient_accumulation_steps`.
        per_generation (`int`): Micro-batches of a generation batch, `steps_per_generation`.
        most (`int`, *optional*): Tokens of the longest completion, `max_completion_length`.
        exchangeable (`int`): Micro-batches that can be merged into one without changing any update's gradient.
    """

    micro_batch: int
    group: int
    completions: int
    accumulation: int
    per_generation: int
    most: int | None
    exchangeable: int

    @classmethod
    def of(cls, args: ProRLConfig, group: int) -> "BatchShape":
        """Read it from a configuration."""
        return cls(
            micro_batch=args.per_device_train_batch_size,
            group=group,
            completions=args.generation_batch_size,
            accumulation=args.gradient_accumulation_steps,
            per_generation=args.steps_per_generation,
            most=args.max_completion_length,
            exchangeable=args.exchangeable_micro_batches,
        )


def cost_findings(first: FirstSteps, shape: BatchShape, reward_seconds: float) -> list[Finding]:
    """
    Return the findings about time, and about memory if a GPU was used.

    Args:
        first ([`FirstSteps`]): The first steps.
        shape ([`BatchShape`]): Of its batches.
        reward_seconds (`float`): Seconds of all reward functions for one completion.
    """
    rows = first.rows
    last = rows[-1]
    timed = {stage: max(row.get(f"time_{stage}", 0.0) for row in rows) for stage in STAGES}
    stages = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in timed.items() if seconds)
    wall = seconds_of_run(rows, first.max_steps, first.steps_per_generation)
    throughput = sum(row["tokens_per_second"] for row in rows) / len(rows)
    share = reward_seconds * shape.completions / max(rows[0]["time_step"], 1e-9)
    findings = [
        Finding("seconds by stage", stages, values={f"time_{stage}": seconds for stage, seconds in timed.items()}),
        Finding("tokens per second", f"{throughput:.0f}", values={"tokens_per_second": throughput}),
        Finding(
            f"{WALL_TIME} {first.max_steps} steps",
            f"about {duration(wall)}, without evaluations",
            values={"seconds": wall, "max_steps": first.max_steps, "seconds_last_step": last["time_step"]},
        ),
        make_finding(
            "rewards in a step that generates",
            percent(share),
            share > SLOW_REWARD,
            "the reward function is slow: batch it, or let it run fewer tests",
            share=share,
        ),
    ]
    if first.total_gib is None:
        return findings
    peak = max(row["peak_memory_gib"] for row in rows)
    # A rollout's cache grows with the generation batch, and not with the micro-batch.
    without_rollout = [row["peak_memory_gib"] for row in rows if not row.get("time_rollout")] or [peak]
    per_row = (max(without_rollout) - first.held_gib) / shape.micro_batch
    return [
        *findings,
        make_finding(
            "peak memory",
            f"{peak:.1f} of {first.total_gib:.1f} GiB",
            peak > USABLE * first.total_gib,
            "hardly fits: lower per_device_train_batch_size, or set gradient_checkpointing: true",
            peak_gib=peak,
            total_gib=first.total_gib,
        ),
        micro_batch_finding(first, shape, per_row),
    ]


def micro_batch_finding(first: FirstSteps, shape: BatchShape, per_row: float) -> Finding:
    """
    Return the finding about the micro-batch: one that fits, or a larger one if the GPU has room for it at the full
    length of completions. A row took `per_row` GiB at the lengths of the first samples.
    """
    now = shape.micro_batch
    fits = largest_micro_batch(first.held_gib, per_row, first.total_gib, shape.group)
    larger = now
    length = max(row.get("completion_length", 0.0) for row in first.rows)
    if shape.most is not None and length > 0:
        at_full_length = per_row * max(1.0, shape.most / length)
        fit_at_full_length = largest_micro_batch(first.held_gib, at_full_length, first.total_gib, shape.group)
        larger = larger_micro_batch(now, fit_at_full_length, shape.exchangeable)
    what = "largest micro-batch that fits"
    number = f"{fits} rows (now {now})"
    values = {"rows": fits, "now": now, "advised": larger}
    if larger == now:
        change = (
            f"does not fit: set per_device_train_batch_size: {fits}, and raise gradient_accumulation_steps "
            "by the same factor"
        )
        return make_finding(what, number, 0 < fits < now, change, **values)
    factor = larger // now
    change = (
        "the same updates, up to rounding, need fewer forward passes: set "
        f"per_device_train_batch_size: {larger} and gradient_accumulation_steps: {shape.accumulation // factor} "
        f"(and steps_per_generation: {shape.per_generation // factor}, if it is set)"
    )
    return Finding(what, number, change, LOOK, values)
