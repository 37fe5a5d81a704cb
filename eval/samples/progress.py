"""How far sampling has come: a bar on a terminal, a line at every quarter where the output is a file."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm


QUARTERS = 4
SHORT = 10.0  # seconds; work that is done sooner needs no lines


class _Lines:
    """Lines on stderr, the first after a quarter of the work."""

    def __init__(self, total: int, description: str):
        self.total, self.description, self.done = total, description, 0
        self._began, self._quarters_shown = time.monotonic(), 0

    def update(self, count: int) -> None:
        self.done += count
        quarter = QUARTERS * self.done // self.total
        if quarter > self._quarters_shown:
            self._quarters_shown = quarter
            seconds = time.monotonic() - self._began
            if seconds < SHORT:
                return
            left = seconds * (self.total - self.done) / self.done
            print(
                f"{self.description}: {self.done} of {self.total} samples in {clock(seconds)}"
                + (f", about {clock(left)} left" if left >= 1 else ""),
                file=sys.stderr,
                flush=True,
            )


@contextmanager
def progress(total: int, description: str) -> Iterator[tqdm | _Lines]:
    """
    Args:
        total (`int`): Samples.
        description (`str`): What is sampled.

    Yields:
        An object whose `update(count)` takes the number of samples just done.
    """
    if sys.stderr.isatty():
        with tqdm(total=total, desc=description, unit="sample") as bar:
            yield bar
    else:
        yield _Lines(total, description)


def clock(seconds: float) -> str:
    """`1:05:03`, or `0:42`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
