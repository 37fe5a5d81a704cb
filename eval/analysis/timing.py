"""Which step times can be compared: runs that train in parallel slow each other down."""

from itertools import combinations
from typing import NamedTuple

import numpy as np

from trl_prorl.eval.run_folder.run import RecordedRun


TIMES = ("time_step", "time_ended")
MAX_NAMED = 6  # runs in one sentence


class Spans(NamedTuple):
    """Start and end of each step of a run, in seconds since 1970, ascending, shape (T,) each."""

    begun: np.ndarray
    ended: np.ndarray


class Timing:
    """
    Finds the runs of a comparison that trained in parallel.

    A step takes longer while another run trains, by an unknown amount. So a run that shared any step with another run
    of the comparison has no step time there.

    Args:
        runs (`list[RecordedRun]`): All runs of the comparison.

    Attributes:
        beside (`list[RecordedRun]`): Runs that trained in parallel with another one.
    """

    def __init__(self, runs: list[RecordedRun]):
        timed = [run for run in runs if all(run.measured(key) is not None for key in TIMES)]
        spans = [step_spans(run) for run in timed]
        beside = set()
        for first, second in combinations(range(len(timed)), 2):
            if share_a_moment(spans[first], spans[second]):
                beside |= {first, second}
        self.beside = [timed[place] for place in sorted(beside)]

    def alone(self, run: RecordedRun) -> bool:
        """Return whether a run of the comparison trained alone, so that its step time counts."""
        return all(run is not other for other in self.beside)

    def notes(self) -> list[str]:
        """Return why runs have no step time, and how to measure it; empty if all have one."""
        if not self.beside:
            return []
        names = [f"`{run.name}`" for run in self.beside[:MAX_NAMED]]
        if len(self.beside) > MAX_NAMED:
            names.append(f"{len(self.beside) - MAX_NAMED} more")
        return [
            "No step time is shown for these runs, which trained in parallel and slowed each other down: "
            f"{', '.join(names)}. `make step-cost` times variants one after the other."
        ]


def step_spans(run: RecordedRun) -> Spans:
    """Return start and end of a run's timed steps."""
    seconds, ended = run.metrics[list(TIMES)].dropna().to_numpy().T
    return Spans(np.sort(ended - seconds), np.sort(ended))


def share_a_moment(a: Spans, b: Spans) -> bool:
    """Return whether any step of one run overlaps with a step of the other."""
    # For each step of a: the number of b's steps that began before its end, and that ended before its start.
    begun = np.searchsorted(b.begun, a.ended, side="left")
    over = np.searchsorted(b.ended, a.begun, side="right")
    return bool((begun > over).any())
