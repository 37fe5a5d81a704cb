"""Whose step times can be compared: runs that train at the same time slow one another."""

from itertools import combinations
from typing import NamedTuple

import numpy as np

from trl_prorl.eval.run_folder.run import RecordedRun


TIMES = ("time_step", "time_ended")


class Spans(NamedTuple):
    """When each step of a run began and ended, in seconds since 1970, ascending, shape (T,) each."""

    begun: np.ndarray
    ended: np.ndarray


class Timing:
    """
    Tells, of the runs of a comparison, which ones trained alone.

    A step takes longer while another run trains beside it, and by how much is not known. So a run that did a step
    while another run of the comparison did one has no step time there.

    Args:
        runs (`list[RecordedRun]`): All runs of the comparison.

    Attributes:
        beside (`list[RecordedRun]`): Those that trained while another one did.
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
        """Return whether the step time of a run of the comparison is that of the run alone."""
        return all(run is not other for other in self.beside)


def step_spans(run: RecordedRun) -> Spans:
    """Return the spans of a run's timed steps."""
    seconds, ended = run.metrics[list(TIMES)].dropna().to_numpy().T
    return Spans(np.sort(ended - seconds), np.sort(ended))


def share_a_moment(a: Spans, b: Spans) -> bool:
    """Return whether any step of one run was under way while a step of the other was."""
    # Of b's steps: how many began before each step of a ended, and how many were over when it began.
    begun = np.searchsorted(b.begun, a.ended, side="left")
    over = np.searchsorted(b.ended, a.begun, side="right")
    return bool((begun > over).any())
