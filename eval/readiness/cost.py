"""Time, memory and throughput of a whole run from its first steps."""

import resource
import sys
from collections.abc import Mapping, Sequence
from statistics import fmean

import psutil

from trl_prorl.anchors import ANCHORS
from trl_prorl.config import ProRLConfig
from trl_prorl.eval.pages.table import percent
from trl_prorl.eval.readiness.finding import LOOK, STOP, Finding, make_finding
from trl_prorl.eval.readiness.memory import GIB, USABLE, process_share


OF_GENERATION = ("rollout", *(anchor.name for anchor in ANCHORS))
STAGES = (*OF_GENERATION, "update")
SLOW_REWARD = 0.3  # share of a step
WALL_TIME = "wall time of"


def seconds_of_run(rows: Sequence[Mapping[str, float]], max_steps: int, steps_per_generation: float) -> float:
    """
    Return the wall time of a full run, without evaluations and checkpoints, from at least one row of `metrics.jsonl`.

    The cost of a generation is the time of rollout and anchors in the first row, without that of anchors that every
    step scores again. The cost of a step is the rest of the last row, which has no warm-up. If a step contains whole
    generations, the last row is the cost of a step.
    """
    if steps_per_generation <= 1:
        return max_steps * rows[-1]["time_step"]
    first, last = (sum(row.get(f"time_{stage}", 0.0) for stage in OF_GENERATION) for row in (rows[0], rows[-1]))
    again = 0.0 if rows[-1].get("time_rollout") else last
    generation = first - again
    step = rows[-1]["time_step"] - last + again
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


def out_of_memory(micro_batch: int) -> Finding:
    """Return the finding about a run that does not fit."""
    change = (
        "the run does not fit: lower per_device_train_batch_size, max_completion_length, or compact_max_rows, or set "
        "gradient_checkpointing: true"
    )
    number = f"out of memory at per_device_train_batch_size: {micro_batch}"
    return Finding("memory", number, change, STOP, {"now": micro_batch})


def cost_findings(trainer, rows: Sequence[Mapping[str, float]]) -> list[Finding]:
    """
    Return the findings about time and memory.

    Args:
        trainer ([`ProRLTrainer`]): It has just done the first steps.
        rows (`list[dict]`): Their rows of `metrics.jsonl`.
    """
    args = trainer.args
    max_steps = trainer.state.max_steps
    timed = {f"time_{stage}": max(row.get(f"time_{stage}", 0.0) for row in rows) for stage in STAGES}
    stages = ", ".join(f"{key.removeprefix('time_')} {seconds:.2f}" for key, seconds in timed.items() if seconds)
    generate_every = args.steps_per_generation * trainer.num_iterations
    wall = seconds_of_run(rows, max_steps, generate_every / args.gradient_accumulation_steps)
    share = rows[0]["time_reward"] / rows[0]["time_step"]
    return [
        Finding("seconds by stage", stages, values=timed),
        *throughput_findings(rows),
        Finding(
            f"{WALL_TIME} {max_steps} steps",
            f"about {duration(wall)}, without evaluations",
            values={"seconds": wall, "max_steps": max_steps, "seconds_last_step": rows[-1]["time_step"]},
        ),
        make_finding(
            "rewards in a step that generates",
            percent(share),
            share > SLOW_REWARD,
            "the reward function is slow: batch it, or let it run fewer tests",
            share=share,
        ),
        *memory_findings(trainer, rows),
    ]


def throughput_findings(rows: Sequence[Mapping[str, float]]) -> list[Finding]:
    """Return the finding about the throughput, if the trainer measures it."""
    if "tokens_per_second" not in rows[0]:
        return []
    throughput = fmean(row["tokens_per_second"] for row in rows)
    return [Finding("tokens per second", f"{throughput:.0f}", values={"tokens_per_second": throughput})]


def memory_findings(trainer, rows: Sequence[Mapping[str, float]]) -> list[Finding]:
    """Return the findings about the memory of the first steps, from their rows of `metrics.jsonl`."""
    device = trainer.accelerator.device
    if device.type != "cuda":
        unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB on Linux
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GIB
        total = psutil.virtual_memory().total / GIB
        change = "will not fit next to other programs: lower per_device_train_batch_size, or use a smaller model"
        return [peak_finding("peak memory of the process", peak, total, change)]
    held, total = (size / GIB for size in process_share(device))
    peak = max(row["peak_memory_gib"] for row in rows)
    # A rollout's cache grows with the generation batch, and not with the micro-batch.
    without_rollout = [row["peak_memory_gib"] for row in rows if not row.get("time_rollout")] or [peak]
    used = max(without_rollout) - held
    merged = merged_micro_batches(trainer, rows)
    per_row = used / (trainer.args.per_device_train_batch_size * merged)
    length = max(row.get("completion_length", 0.0) for row in rows)
    change = "hardly fits: lower per_device_train_batch_size, or set gradient_checkpointing: true"
    findings = [
        peak_finding("peak memory", peak, total, change),
        micro_batch_finding(trainer.args, trainer.num_generations, held, total, per_row, length),
    ]
    if getattr(trainer, "merging", None) is not None:
        tokens = max(row["tokens_processed_policy"] / row["policy_forward_calls"] for row in rows)
        fits = max(0, int((USABLE * total - held) / used * tokens)) if used > 0 else 0
        apart = merged < trainer.args.gradient_accumulation_steps
        findings.append(merge_finding(tokens, fits, apart))
    return findings


def merged_micro_batches(trainer, rows: Sequence[Mapping[str, float]]) -> float:
    """Return how many micro-batches a forward had on average, of the step in which they were most."""
    calls = [row["policy_forward_calls"] for row in rows if row.get("policy_forward_calls")]
    if getattr(trainer, "merging", None) is None or not calls:
        return 1.0
    return max(1.0, trainer.args.gradient_accumulation_steps * trainer.accelerator.num_processes / min(calls))


def merge_finding(tokens: float, fits: int, apart: bool) -> Finding:
    """
    Return the finding about merged micro-batches: a forward had `tokens`, and `fits` tokens fit; `apart`, whether an
    update still has several forwards.
    """
    number = f"{fits:,} tokens (now {tokens:,.0f})"
    values = {"fits": fits, "now": tokens}
    change = f"the same updates, up to rounding, need fewer launches: set merge_tokens: {fits}"
    return make_finding("tokens of merged micro-batches that fit", number, apart and fits > tokens, change, **values)


def peak_finding(what: str, peak: float, total: float, change: str) -> Finding:
    """Return the finding about a peak in GiB, of the memory that there is."""
    number = f"{peak:.1f} of {total:.1f} GiB"
    return make_finding(what, number, peak > USABLE * total, change, peak_gib=peak, total_gib=total)


def micro_batch_finding(
    args: ProRLConfig, group: int, held: float, total: float, per_row: float, length: float
) -> Finding:
    """
    Return the finding about the micro-batch: one that fits, or a larger one if the GPU has room for it at the full
    length of completions. In GiB `held` of `total` are in use between steps, and a row took `per_row` at `length`
    tokens.
    """
    now = args.per_device_train_batch_size
    fits = largest_micro_batch(held, per_row, total, group)
    larger = now
    most = args.max_completion_length
    if most is not None and length > 0:
        at_full_length = per_row * max(1.0, most / length)
        fit_at_full_length = largest_micro_batch(held, at_full_length, total, group)
        larger = larger_micro_batch(now, fit_at_full_length, getattr(args, "exchangeable_micro_batches", 1))
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
        f"per_device_train_batch_size: {larger} and gradient_accumulation_steps: "
        f"{args.gradient_accumulation_steps // factor} (and steps_per_generation: "
        f"{args.steps_per_generation // factor}, if it is set)"
    )
    return Finding(what, number, change, LOOK, values)
