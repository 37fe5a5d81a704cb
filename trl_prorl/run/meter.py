"""Cost and measurements of a step. Absent means not measured, never 0."""

import math
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

from ..anchors import ANCHORS
from ..kl import zero_masked


TOKENS_IN_LOSS = "tokens_in_loss"  # a count, not an entry of the row
TOKENS_OF = "tokens of "  # prefix for the number of tokens of a mean


class Meter:
    """Gathers one optimizer step's measurements for a row of `metrics.jsonl`."""

    KINDS = ("policy", *(anchor.name for anchor in ANCHORS))
    STAGES = ("rollout", *(anchor.name for anchor in ANCHORS), "update", "reset")

    def __init__(self, device: torch.device):
        self.timer = StageTimer(device)
        self.device = device
        self._began: float | None = None
        self._utilization: Utilization | None = None
        self.micro_batch_tokens: list[float] = []  # in the loss, of the last step
        self._clear()

    def _clear(self) -> None:
        self._forwards: dict[str, int] = {}  # calls and positions
        for kind in self.KINDS:
            self._forwards[f"{kind}_forward_calls"] = 0
            self._forwards[f"tokens_processed_{kind}"] = 0
        # Scalars on the device, one per micro-batch, read once at the end of the step.
        self._scalars: dict[str, list[torch.Tensor]] = defaultdict(list)
        self._totals: set[str] = set()

    @property
    def open(self) -> bool:
        return self._began is not None

    def begin_step(self) -> None:
        """Start the clock; time outside other stages counts as `update`."""
        self.timer.clear()
        self._clear()
        if self.device.type == "cuda":  # loading, probes and evaluations belong to no step
            torch.cuda.reset_peak_memory_stats(self.device)
        self.timer.enter("update")
        self._utilization = Utilization(self.device)
        self._began = time.perf_counter()

    def counted(self, model: Callable[..., Any], kind: str) -> Callable[..., Any]:
        """Wrap a model so that each call counts, with its positions (padding included)."""

        def call(**inputs):
            self._forwards[f"{kind}_forward_calls"] += 1
            self._forwards[f"tokens_processed_{kind}"] += inputs["input_ids"].numel()
            return model(**inputs)

        return call

    def add_means(self, values: Mapping[str, torch.Tensor], mask: torch.Tensor) -> None:
        """Add values `(B, T)` to the step's means over tokens."""
        counts = mask.bool()
        tokens = mask.sum()
        for name, token_values in values.items():
            self._scalars[name].append(zero_masked(token_values.detach(), counts).sum())
            self._scalars[TOKENS_OF + name].append(tokens)

    def add_total(self, name: str, value: torch.Tensor) -> None:
        """Add a scalar to a sum over micro-batches, averaged over processes."""
        self._totals.add(name)
        self._scalars[name].append(value.detach())

    def add_count(self, name: str, count: torch.Tensor) -> None:
        self._scalars[name].append(count)

    def end_step(self, reduce: Callable[[torch.Tensor], torch.Tensor], processes: int = 1) -> dict[str, float]:
        """
        Return the row without the trainer's keys. Counts are summed over processes by `reduce`; times are this
        process's.
        """
        self.timer.leave()
        sums, self.micro_batch_tokens = self._add_up(reduce, processes)
        means = [name for name in sums if TOKENS_OF + name in sums]
        seconds = time.perf_counter() - self._began
        self._began = None

        row: dict[str, float] = {}
        for name in means:
            total = sums.pop(name)
            tokens = sums.pop(TOKENS_OF + name)
            if tokens:
                row[name] = total / tokens
        for name in self._totals:
            row[name] = sums.pop(name) / processes
        in_loss = sums.pop(TOKENS_IN_LOSS, 0)
        row.update({name: int(count) for name, count in sums.items()})

        spent = self.timer.seconds
        for stage in self.STAGES:
            row[f"time_{stage}"] = spent[stage]
        row["time_step"] = seconds
        row["time_meter"] = self.timer.overhead + spent["meter"]
        row["time_ended"] = time.time()
        row["ref_time_fraction"] = spent["ref"] / seconds
        row["tokens_per_second"] = in_loss / seconds
        row["positions_per_second"] = row["tokens_processed_policy"] / seconds
        row.update(measure_gpu(self.device, self._utilization.end()))
        return row

    def _add_up(
        self, reduce: Callable[[torch.Tensor], torch.Tensor], processes: int
    ) -> tuple[dict[str, float], list[float]]:
        """
        Read all scalars in one transfer, and sum them in double precision. Also returns each micro-batch's tokens in
        the loss.
        """
        scalars = [scalar.double() for column in self._scalars.values() for scalar in column]
        numbers = iter(torch.stack(scalars).tolist() if scalars else [])
        columns = {name: [next(numbers) for _ in column] for name, column in self._scalars.items()}
        tokens = columns.get(TOKENS_IN_LOSS, [])
        sums = {name: sum(column) for name, column in columns.items()} | self._forwards
        if processes > 1:
            local = torch.tensor([*sums.values(), *tokens], dtype=torch.float64, device=self.device)
            total = reduce(local).tolist()
            tokens = total[len(sums) :]
            sums = dict(zip(sums, total, strict=False))
        return sums, tokens


class StageTimer:
    """
    Counts wall-clock seconds by stage; a second belongs to the innermost one. On a GPU, the host waits for a stage's
    CUDA events only when seconds are read. `overhead` is the bookkeeping's time.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.overhead = 0.0
        self.stack: list[Span] = []
        self._since: float | torch.cuda.Event = 0.0
        self._seconds: dict[str, float] = defaultdict(float)
        self._unread: list[tuple[Span, Any, Any]] = []  # a span, and its start and end

    @contextmanager
    def stage(self, name: str) -> "Iterator[Span]":
        span = self.enter(name)
        try:
            yield span
        finally:
            self.leave()

    def enter(self, name: str) -> "Span":
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
        self.synchronize()
        return self._seconds

    def synchronize(self) -> None:
        """Add all times since the last call; synchronizes with a GPU once."""
        if self._unread and self.device.type == "cuda":
            _, _, last = self._unread[-1]
            last.synchronize()
        for span, begin, end in self._unread:
            if self.device.type == "cuda":
                seconds = begin.elapsed_time(end) / 1000
            else:
                seconds = end - begin
            span.settled += seconds
            self._seconds[span.stage] += seconds
        self._unread.clear()

    def _change(self) -> None:
        began = time.perf_counter()
        moment = self._moment()
        if self.stack:
            self._unread.append((self.stack[-1], self._since, moment))
        self._since = moment
        self.overhead += time.perf_counter() - began

    def _moment(self) -> "float | torch.cuda.Event":
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event


class Span:
    def __init__(self, timer: "StageTimer", stage: str):
        self.timer = timer
        self.stage = stage
        self.settled = 0.0

    @property
    def seconds(self) -> float:
        """Return its own seconds after its end, without inner stages."""
        self.timer.synchronize()
        return self.settled


def measure_gpu(device: torch.device, readings: Sequence[float] = ()) -> dict[str, float]:
    """Return GPU utilisation in percent (mean of `readings` and one more) and peak memory in GiB; nothing on a CPU."""
    if device.type != "cuda":
        return {}
    row = {"peak_memory_gib": torch.cuda.max_memory_allocated(device) / 2**30}
    torch.cuda.reset_peak_memory_stats(device)
    with suppress(Exception):  # as in `Utilization`
        row["gpu_utilization"] = statistics.fmean([*readings, torch.cuda.utilization(device)])
    return row


class Utilization:
    """Reads GPU utilisation, in percent, in a thread; nothing on a CPU, without NVML, or with MIG."""

    EVERY = 0.5  # seconds; NVML averages over the last sixth of a second to a second

    def __init__(self, device: torch.device):
        self.device = device
        self.readings = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        if device.type == "cuda":
            self._thread.start()

    def _read(self) -> None:
        with suppress(Exception):  # the only base class of NVML's errors
            while not self._over.wait(self.EVERY):
                self.readings.append(torch.cuda.utilization(self.device))

    def end(self) -> list[float]:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        return self.readings


def newest(earlier: float, value: float) -> float:
    return value


# Names that keep the smallest, largest or newest value.
EXTREMES = {
    "completions/min_length": min,
    "completions/min_terminated_length": min,
    "clip_ratio/low_min": min,
    "sampling/importance_sampling_ratio/min": min,
    "completions/max_length": max,
    "completions/max_terminated_length": max,
    "clip_ratio/high_max": max,
    "sampling/sampling_logp_difference/max": max,
    "sampling/importance_sampling_ratio/max": max,
    "num_tokens": newest,  # so far
}


class Means(dict):
    """
    Means by name, or the values of `EXTREMES`. JSON values: number of values, their sum, sum of weights, weighted sum,
    whether all weights are equal.
    """

    def add(self, name: str, value: float, weight: float = 1.0) -> None:
        """
        Add a mean over `weight` rows or tokens. NaN and infinity do not count; a mean over nothing (TRL's 0) counts if
        there is no other.
        """
        if not math.isfinite(value):
            return
        count, total, weights, weighted, equal = self.get(name, (0, 0.0, 0.0, 0.0, True))
        if not weights:
            self[name] = [1, value, weight, value * weight, True]
            return
        if not weight:
            return
        if name in EXTREMES:
            self[name][1] = EXTREMES[name](total, value)
            return
        equal = equal and weight * count == weights
        self[name] = [count + 1, total + value, weights + weight, weighted + value * weight, equal]

    def merge(self, means: "Means") -> None:
        for name, value in means.values_by_name().items():
            self.add(name, value, means[name][2])

    def values_by_name(self) -> dict[str, float]:
        """Return the means; with equal weights bit-identical to plain means."""
        means = {}
        for name, (count, total, weights, weighted, equal) in self.items():
            means[name] = total / count if equal else weighted / weights
        return means
