"""Which step times can be compared: runs that train in parallel slow each other down."""

from itertools import combinations

import numpy as np

from trl_prorl.eval.run_folder.run import RecordedRun


TIMES = ("time_step", "time_ended")
Spans = tuple[np.ndarray, np.ndarray]  # start and end of each step
MAX_NAMED = 6  # runs in one sentence


def trained_in_parallel(runs: list[RecordedRun]) -> list[RecordedRun]:
    """
    Return the runs that shared any step with another one of them. A step takes longer while another run trains, by an
    unknown amount, so these runs have no step time in a comparison.
    """
    timed = [run for run in runs if all(run.measured(key) is not None for key in TIMES)]
    spans = {run: _step_spans(run) for run in timed}
    parallel = set()
    for first, second in combinations(timed, 2):
        if share_a_moment(spans[first], spans[second]):
            parallel |= {first, second}
    return [run for run in timed if run in parallel]


def share_a_moment(a: Spans, b: Spans) -> bool:
    """Return whether any step of one run overlaps with a step of the other."""
    begun_a, ended_a = a
    begun_b, ended_b = b
    # For each step of a: the number of b's steps that began before its end, and that ended before its start.
    begun = np.searchsorted(begun_b, ended_a, side="left")
    over = np.searchsorted(ended_b, begun_a, side="right")
    # The past that runs share since they were branched from one run is no step of another run.
    is_own = ~np.isin(ended_a, ended_b)
    return bool((begun > over)[is_own].any())


def _step_spans(run: RecordedRun) -> Spans:
    """Return start and end of a run's timed steps, in seconds since 1970, ascending, shape (T,) each."""
    seconds, ended = run.metrics[list(TIMES)].dropna().to_numpy().T
    return np.sort(ended - seconds), np.sort(ended)


def parallel_notes(parallel: list[RecordedRun]) -> list[str]:
    """Return why runs have no step time, and how to measure it; empty if all have one."""
    if not parallel:
        return []
    names = [f"`{run.name}`" for run in parallel[:MAX_NAMED]]
    if len(parallel) > MAX_NAMED:
        names.append(f"{len(parallel) - MAX_NAMED} more")
    return [
        "No step time is shown for these runs, which trained in parallel and slowed each other down: "
        f"{', '.join(names)}. `scripts/bench.py` times variants in turns."
    ]
