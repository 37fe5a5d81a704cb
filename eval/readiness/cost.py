"""Time and memory of a whole run from its first steps."""

from collections.abc import Mapping, Sequence

from trl_prorl.anchors import ANCHORS
from trl_prorl.eval.readiness.finding import STOP, Finding, make_finding
from trl_prorl.eval.readiness.memory import GIB, USABLE, process_share


OF_GENERATION = ("rollout", *(anchor.name for anchor in ANCHORS))
WALL_TIME = "expected wall time"


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
    Return the findings about time and, on a GPU, memory.

    Args:
        trainer ([`ProRLTrainer`]): It has just done the first steps.
        rows (`list[dict]`): Their rows of `metrics.jsonl`.
    """
    args = trainer.args
    max_steps = trainer.state.max_steps
    generate_every = args.steps_per_generation * trainer.num_iterations
    wall = seconds_of_run(rows, max_steps, generate_every / args.gradient_accumulation_steps)
    number = f"about {duration(wall)} for {max_steps} steps, without evaluations"
    findings = [Finding(WALL_TIME, number, values={"seconds": wall, "max_steps": max_steps})]
    device = trainer.accelerator.device
    if device.type != "cuda":
        return findings
    held, total = process_share(device)
    return findings + memory_findings(trainer, rows, held / GIB, total / GIB)


def memory_findings(trainer, rows: Sequence[Mapping[str, float]], held: float, total: float) -> list[Finding]:
    """
    Return the findings about the memory of the first steps, in GiB: `held` between steps, of `total`. Completions that
    become longer take more.
    """
    peak = max(row["peak_memory_gib"] for row in rows)
    change = "hardly fits: lower per_device_train_batch_size, or set gradient_checkpointing: true"
    number = f"{peak:.1f} of {total:.1f} GiB"
    findings = [make_finding("peak memory", number, peak > USABLE * total, change, peak_gib=peak, total_gib=total)]
    # A rollout's cache grows with the generation batch, and not with the micro-batch.
    used = max([row["peak_memory_gib"] for row in rows if not row.get("time_rollout")] or [peak]) - held
    now = trainer.args.per_device_train_batch_size
    calls = [row["policy_forward_calls"] for row in rows if row.get("policy_forward_calls")]
    if getattr(trainer, "merging", None) is not None and calls:  # several micro-batches in a forward
        used /= max(1.0, trainer.args.gradient_accumulation_steps / min(calls))
    fits = largest_micro_batch(held, used / now, total, trainer.num_generations)
    number = f"{fits} rows (now {now})"
    change = f"does not fit: set per_device_train_batch_size: {fits}, and raise gradient_accumulation_steps as much"
    findings.append(make_finding("largest micro-batch that fits", number, 0 < fits < now, change, rows=fits, now=now))
    return findings
