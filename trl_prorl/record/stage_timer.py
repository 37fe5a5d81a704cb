"""Wall-clock seconds by stage, on a CPU or of the work of a GPU."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch


class Span:
    """A time in a stage, measured by a [`StageTimer`]."""

    def __init__(self, timer: "StageTimer", stage: str):
        self.timer = timer
        self.stage = stage
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        """Return its own seconds, once it is over, without those of stages inside it."""
        self.timer.settle()
        return self._seconds

    def add(self, seconds: float) -> None:
        self._seconds += seconds


class StageTimer:
    """
    Counts wall-clock seconds by stage. Stages nest, and a second belongs to the innermost stage only.

    On a GPU a stage changes when the device, which works behind the host, has done what was asked of it before: an
    event between its kernels has the time. The host waits for events only when seconds are read. `overhead` is what
    the bookkeeping itself takes.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.overhead = 0.0
        self.stack: list[Span] = []
        self._since: float | torch.cuda.Event = 0.0
        self._seconds: dict[str, float] = defaultdict(float)
        self._unread: list[tuple[Span, Any, Any]] = []  # with the moments between which a span was on top

    @contextmanager
    def stage(self, name: str) -> Iterator[Span]:
        """Time a stage in this context."""
        span = self.enter(name)
        try:
            yield span
        except BaseException:
            with suppress(RuntimeError):  # a GPU that has failed fails again here, and would hide the first error
                self.leave()
            raise
        self.leave()

    def enter(self, name: str) -> Span:
        self._change()
        self.stack.append(Span(self, name))
        return self.stack[-1]

    def leave(self) -> None:
        self._change()
        self.stack.pop()

    def clear(self) -> None:
        self.overhead = 0.0
        self.stack.clear()
        self._seconds.clear()
        self._unread.clear()

    @property
    def seconds(self) -> Mapping[str, float]:
        """Return the seconds of every stage up to its last change."""
        self.settle()
        return self._seconds

    def settle(self) -> None:
        """Give every time since the last call to its span and its stage; a GPU is waited for once."""
        if self._unread and self.device.type == "cuda":
            _, _, last = self._unread[-1]
            last.synchronize()
        for span, begin, end in self._unread:
            if self.device.type == "cuda":
                seconds = begin.elapsed_time(end) / 1000
            else:
                seconds = end - begin
            span.add(seconds)
            self._seconds[span.stage] += seconds
        self._unread.clear()

    def _change(self) -> None:
        """End the time of the stage on top: the next belongs to another."""
        began = time.perf_counter()
        if self.stack:
            self._unread.append((self.stack[-1], self._since, self._moment()))
        self._since = self._moment()
        self.overhead += time.perf_counter() - began

    def _moment(self) -> "float | torch.cuda.Event":
        """Return this moment: of the host's clock, or of a GPU when it has done what was asked so far."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event
