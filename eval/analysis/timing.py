"""Whose step times can be compared: runs that train at the same time slow one another."""

from itertools import combinations
from typing import NamedTuple

import numpy as np

from trl_prorl.eval.run_folder.run import RecordedRun


class Spans(NamedTuple):
    """When each step of a run began and ended, in seconds since 1970, ascending, shape (T,) each."""

    begun: np.ndarray
    ended: np.ndarray


class Timing:
    """
    Tells, of the runs of a comparison, which ones trained alone.

    A step takes longer while another run trains beside it, and by how much is not known. So a run that did a step
    while another run of the comparison did one has no step time there. Neither has a run whose record does not say
    when its steps ended. A run that is compared with no other always has a step time.

    Args:
        runs (`list[RecordedRun]`): All runs of the comparison.

    Attributes:
        beside (`list[RecordedRun]`): Those that trained while another one did.
        unknown (`list[RecordedRun]`): Those whose steps were timed, but whose record does not say when they ended.
    """

    def __init__(self, runs: list[RecordedRun]):
        timed = [run for run in runs if run.measured("time_step") is not None]
        spans = [step_spans(run) for run in timed]
        beside = set()
        for first, second in combinations(range(len(timed)), 2):
            if spans[first] and spans[second] and share_a_moment(spans[first], spans[second]):
                beside |= {first, second}
        self.beside = [timed[place] for place in sorted(beside)]
        self.unknown = []
        if len(runs) > 1:
            self.unknown = [run for run, found in zip(timed, spans, strict=True) if found is None]

    def alone(self, run: RecordedRun) -> bool:
        """Return whether the step time of a run of the comparison is that of the run alone."""
        return all(run is not other for other in (*self.beside, *self.unknown))


def step_spans(run: RecordedRun) -> Spans | None:
    """
    Return the spans of a run's timed steps; `None` where one of them has no time at which it ended, as in the records
    of earlier versions.
    """
    seconds = run.measured("time_step")
    ended = run.measured("time_ended")
    if seconds is None or ended is None or not seconds.index.isin(ended.index).all():
        return None
    ended = ended[seconds.index]
    return Spans(np.sort((ended - seconds).to_numpy()), np.sort(ended.to_numpy()))


def share_a_moment(a: Spans, b: Spans) -> bool:
    """Return whether any step of one run was under way while a step of the other was."""
    # Of b's steps: how many began before each step of a ended, and how many were over when it began.
    begun = np.searchsorted(b.begun, a.ended, side="left")
    over = np.searchsorted(b.ended, a.begun, side="right")
    return bool((begun > over).any())
