"""Time and memory of a whole run from its first steps."""

from collections.abc import Mapping, Sequence

from trl_prorl.anchors import ANCHORS
from trl_prorl.eval.readiness.finding import STOP, Finding, make_finding
from trl_prorl.eval.readiness.memory import GIB, USABLE, process_share


OF_GENERATION = ("rollout", *(anchor.name for anchor in ANCHORS))
WALL_TIME = "expected wall time"
MEMORY = "memory"  # of a run that does not fit


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


def out_of_memory(micro_batch: int) -> Finding:
    """Return the finding about a run that does not fit."""
    change = (
        "the run does not fit: lower per_device_train_batch_size, max_completion_length, or compact_max_rows, or set "
        "gradient_checkpointing: true"
    )
    number = f"out of memory at per_device_train_batch_size: {micro_batch}"
    return Finding(MEMORY, number, change, STOP, {"now": micro_batch})


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
    total = process_share(device)[1] / GIB
    peak = max(row["peak_memory_gib"] for row in rows)
    change = "hardly fits: lower per_device_train_batch_size, or set gradient_checkpointing: true"
    number = f"{peak:.1f} of {total:.1f} GiB"
    findings.append(make_finding("peak memory", number, peak > USABLE * total, change, peak_gib=peak, total_gib=total))
    return findings
