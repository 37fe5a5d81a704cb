"""What the steps of a run took, and how that compares with the control."""

from trl_prorl.eval.run_folder.run import Run


def median_step_seconds(run: Run) -> float | None:
    """Median seconds of an optimizer step."""
    seconds = run.measured("time_step")
    return None if seconds is None else float(seconds.median())


def evaluation_seconds(run: Run) -> float:
    """Mean seconds a step of the validation during training; 0 where none was recorded."""
    seconds, steps = run.total("time_eval"), run.measured("time_step")
    return 0.0 if not seconds or steps is None else seconds / len(steps)


def mean_step_seconds(run: Run) -> float | None:
    """
    Mean seconds of an optimizer step, validation included: the one to compare where only some steps generate, and
    where a reset waits for a validation that other runs do without.
    """
    seconds = run.measured("time_step")
    return None if seconds is None else float(seconds.mean()) + evaluation_seconds(run)


def throughput(run: Run) -> float | None:
    """Completion tokens in the loss, in every pass, over the seconds of the steps; `None` if not measured."""
    speed, seconds = run.measured("tokens_per_second"), run.measured("time_step")
    return None if speed is None or seconds is None else float((speed * seconds).sum() / seconds.sum())


def reference_share(run: Run) -> float | None:
    """Seconds spent scoring with the reference over all seconds, in [0, 1]."""
    reference, step = run.stage_total("ref"), run.total("time_step")
    return None if reference is None or not step else reference / step


def stage_seconds(run: Run, stage: str) -> float | None:
    """Mean seconds a step of one stage (`rollout`, `old`, `ref`, `update`); `None` if it was not timed."""
    seconds, steps = run.stage_total(stage), run.measured("time_step")
    return None if seconds is None or steps is None else seconds / len(steps)


def peak_memory(run: Run) -> float | None:
    """Largest allocation on the GPU in any step, in GiB."""
    values = run.measured("peak_memory_gib")
    return None if values is None else float(values.max())
