"""What is said where runs of a comparison have no step time."""

from trl_prorl.eval.analysis.timing import Timing
from trl_prorl.eval.run_folder.run import RecordedRun


NAMED = 6  # runs that a sentence names


def step_time_notes(timing: Timing) -> list[str]:
    """
    Return why runs have no step time in a comparison, and how to measure one; none where all have.
    """
    if not timing.beside:
        return []
    return [
        f"No step time is shown for {_named(timing.beside)}: these runs trained at the same time, and each slows "
        "the others. `trl-prorl step-cost` measures arms in turns."
    ]


def _named(runs: list[RecordedRun]) -> str:
    names = [f"`{run.name}`" for run in runs[:NAMED]]
    if len(runs) > NAMED:
        names.append(f"{len(runs) - NAMED} more")
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} and {names[-1]}"
