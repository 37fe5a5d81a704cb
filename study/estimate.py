"""How long the rest of the study takes, from the runs that are finished."""

from collections.abc import Iterable, Mapping
from statistics import mean

from study.matrix import RunKey


def seconds_of(key: RunKey, finished: Mapping[RunKey, dict]) -> float | None:
    """
    Seconds that a run takes by those that are finished: of its family and steps; else of its family, by the step; else
    of all, by the step; `None` if none is finished.
    """
    kin = (lambda each: (each.family, each.steps) == (key.family, key.steps), lambda each: each.family == key.family)
    for alike in (*kin, lambda each: True):
        if rates := [row["seconds"] / each.steps for each, row in finished.items() if alike(each)]:
            return mean(rates) * key.steps
    return None


def seconds_left(waiting: Iterable[RunKey], finished: Mapping[RunKey, dict], jobs: int) -> float | None:
    """Seconds until these runs are finished, `jobs` at a time; `None` where nothing tells."""
    times = [seconds_of(key, finished) for key in waiting]
    return None if None in times else sum(times) / jobs


def clock(seconds: float | None) -> str:
    """`2 h 05 min`, `7 min`, `under a minute`, or that nothing is known."""
    if seconds is None:
        return "unknown before the first run is finished"
    minutes = round(seconds / 60)
    if minutes < 1:
        return "under a minute"
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min"
