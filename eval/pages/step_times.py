"""The note on runs that have no step time in a comparison."""

from trl_prorl.eval.analysis.timing import Timing
from trl_prorl.eval.run_folder.run import RecordedRun


MAX_NAMED = 6  # runs in one sentence


def step_time_notes(timing: Timing) -> list[str]:
    """
    Return why runs have no step time in a comparison, and how to measure it; empty if all have one.
    """
    if not timing.beside:
        return []
    return [
        f"No step time is shown for {_named(timing.beside)}: these runs trained in parallel and slowed each other "
        "down. `make step-cost` times variants one after the other."
    ]


def _named(runs: list[RecordedRun]) -> str:
    names = [f"`{run.name}`" for run in runs[:MAX_NAMED]]
    if len(runs) > MAX_NAMED:
        names.append(f"{len(runs) - MAX_NAMED} more")
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} and {names[-1]}"
