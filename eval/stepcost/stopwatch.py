"""Seconds of a trainer's steps and stages, on a clock that waits for the device, and its peak memory."""

import time
from collections import defaultdict

import torch
from transformers import TrainerCallback


class Stopwatch(TrainerCallback):
    """
    Seconds of a trainer's steps, and of what it does around generation, which the rollouts of this benchmark skip; and
    the most memory that a GPU held meanwhile.
    """

    def __init__(self, device: torch.device, clock: str):
        self.device, self.seconds, self.began = device, defaultdict(float), None
        self.clock = time.process_time if clock == "cpu" else time.perf_counter
        self._peak, self.held = 0, 0.0

    def begin(self) -> None:
        """Measure anew; `held` is what the GPU holds already, in GiB."""
        self.seconds.clear()
        self._peak = 0
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self.held = torch.cuda.memory_allocated(self.device) / 2**30

    def peak(self) -> float | None:
        """GiB, at most, since [`~Stopwatch.begin`]; `None` without a GPU, where it is not measured."""
        if self.device.type != "cuda":
            return None
        self._peak = max(self._peak, torch.cuda.max_memory_allocated(self.device))
        return self._peak / 2**30

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return self.clock()

    def on_step_begin(self, args, state, control, **kwargs):
        self.began = self.now()

    def ending_a_step(self, function):
        """`function`, with whose end a step ends; the call at the end of an epoch belongs to none."""

        def timed(*args, **kwargs):
            self.peak()  # of the step, before our trainer writes it down and lets the device count anew
            result = function(*args, **kwargs)
            if self.began is not None:
                self.seconds["step"] += self.now() - self.began
                self.began = None
            return result

        return timed

    def around(self, name: str, function):
        def timed(*args, **kwargs):
            began = self.now()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[name] += self.now() - began

        return timed
