"""A mean of means of unequal numbers of rows or tokens."""

import logging
import math
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import torch

from .anchors import ANCHORS
from .kl import zero_masked


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float | None:
    """Average values by their weights, without NaN; `None` if nothing has a weight."""
    pairs = zip(values, weights, strict=True)
    counted = [(value, weight) for value, weight in pairs if weight and not math.isnan(value)]
    if not counted:
        return None
    if len({weight for _, weight in counted}) == 1:  # TRL's arithmetic, to the bit
        return sum(value for value, _ in counted) / len(counted)
    return sum(value * weight for value, weight in counted) / sum(weight for _, weight in counted)


# ---------------------------------------------------------------------------------------------------------------------
# The cost and the measurements of a run: forward calls, tokens, stage times and means over tokens, one row per step.
#
# The meter only observes. Absent means not measured, never 0.


logger = logging.getLogger(__name__)

IN_LOSS = "tokens_in_loss"  # a count that is no entry of the row

# What a scalar of a micro-batch is: the sum of a value over tokens and the number of these, which make a mean; a total
# of the step, averaged over processes; or a count, which is added up over processes.
SUM = "sum"
TOKENS = "tokens"
TOTAL = "total"
COUNT = "count"


class Span:
    """A time in a stage, measured by a [`StageTimer`]."""

    def __init__(self, timer: "StageTimer", stage: str):
        self.timer = timer
        self.stage = stage
        self.settled = 0.0  # seconds that were read from the clock so far

    @property
    def seconds(self) -> float:
        """Return its own seconds, once it is over, without those of stages inside it."""
        self.timer.settle()
        return self.settled


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
            span.settled += seconds
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


class Utilization:
    """
    Reads how busy a GPU is, in percent, by a thread until `end`.

    There are no readings on a CPU, without NVML, nor where NVML has no such number, as for a part of a card (MIG).
    """

    EVERY = 0.5  # seconds; NVML's number is of the last sixth of a second to a second

    def __init__(self, device: torch.device):
        self.device = device
        self.readings = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        if device.type == "cuda":
            self._thread.start()

    def _read(self) -> None:
        with suppress(Exception):  # NVML's own errors derive from it alone
            while not self._over.wait(self.EVERY):
                self.readings.append(torch.cuda.utilization(self.device))

    def end(self) -> list[float]:
        """Stop, and return the readings."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        return self.readings


def measure_gpu(device: torch.device, readings: Sequence[float] = ()) -> dict[str, float]:
    """
    Return GPU utilisation in percent and the step's peak memory in GiB; nothing on a CPU.

    The utilisation is the mean of [`Utilization`]'s readings and of one more.
    """
    if device.type != "cuda":
        return {}
    row = {"peak_memory_gib": torch.cuda.max_memory_allocated(device) / 2**30}
    torch.cuda.reset_peak_memory_stats(device)
    try:
        row["gpu_utilization"] = statistics.fmean([*readings, torch.cuda.utilization(device)])
    except ModuleNotFoundError:
        tell_of_missing_nvml()
    except Exception:  # as in `Utilization`
        pass
    return row


@cache
def tell_of_missing_nvml() -> None:
    """Warn, once per process, what adds `gpu_utilization` to `metrics.jsonl`."""
    package = "amdsmi" if torch.version.hip else "nvidia-ml-py"
    logger.warning("gpu_utilization is not recorded because a package is missing: pip install %s.", package)


class Meter:
    """
    Gathers one optimizer step's measurements and turns them into a row of `metrics.jsonl`.

    Args:
        device (`torch.device`): The model runs there.
    """

    KINDS = ("policy", *(anchor.name for anchor in ANCHORS))
    STAGES = ("rollout", *(anchor.name for anchor in ANCHORS), "update", "reset")

    def __init__(self, device: torch.device):
        self.timer = StageTimer(device)
        self.device = device
        self._began: float | None = None
        self._utilization: Utilization | None = None
        # Of the last step: tokens in the loss of each micro-batch, and those that each mean is of.
        self.micro_batch_tokens: list[float] = []
        self.tokens_of_means: dict[str, float] = {}
        self._clear()

    def _clear(self) -> None:
        self.calls: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self._averages: dict[tuple[str, bool], list[float]] = defaultdict(list)
        # Scalars on the device by what they are and their name, one for each micro-batch; the host reads them at the
        # end of the step.
        self._scalars: dict[tuple[str, str], list[torch.Tensor]] = defaultdict(list)

    @property
    def open(self) -> bool:
        """Return whether a step is under way."""
        return self._began is not None

    def begin_step(self) -> None:
        """Start the clock; what no other stage claims counts as `update`."""
        self.timer.clear()
        self._clear()
        if self.device.type == "cuda":  # loading, probes and evaluations belong to no step
            torch.cuda.reset_peak_memory_stats(self.device)
        self.timer.enter("update")
        self._utilization = Utilization(self.device)
        self._began = time.perf_counter()

    def abandon_step(self) -> None:
        """Forget the step under way, if there is one: what it was part of has ended."""
        if self.open:
            self._utilization.end()
        self._began = None
        self.timer.clear()
        self._clear()

    def counted(self, model: Callable[..., Any], kind: str) -> Callable[..., Any]:
        """Wrap a model so that each call counts as one forward of this kind, with its positions (padding included)."""

        def call(**inputs):
            self.calls[kind] += 1
            self.tokens[kind] += inputs["input_ids"].numel()
            return model(**inputs)

        return call

    def add_tokens_in_loss(self, mask: torch.Tensor) -> None:
        """Add the tokens of a micro-batch that count in its loss, computed or not. `mask` has shape `(B, T)`."""
        self.add_count(IN_LOSS, mask.sum())

    def add_means(self, values: Mapping[str, torch.Tensor], mask: torch.Tensor) -> None:
        """Add to means over tokens of the step, by name. All values and `mask` have shape `(B, T)`."""
        counts = mask.bool()
        tokens = mask.sum()
        for name, of_tokens in values.items():
            self._scalars[SUM, name].append(zero_masked(of_tokens.detach(), counts).sum())
            self._scalars[TOKENS, name].append(tokens)

    def add_total(self, name: str, value: torch.Tensor) -> None:
        """Add a scalar to a sum over the micro-batches of the step."""
        self._scalars[TOTAL, name].append(value.detach())

    def add_average(self, name: str, value: float, of_tokens: bool = False) -> None:
        """Add a micro-batch's mean over its completions, or over the tokens in its loss."""
        self._averages[name, of_tokens].append(value)

    def add_count(self, name: str, count: torch.Tensor) -> None:
        """Add to a count over micro-batches and processes."""
        self._scalars[COUNT, name].append(count)

    def newest_sums(self, prefix: str) -> dict[str, torch.Tensor]:
        """Return the newest micro-batch's sums over tokens, of the means whose names begin with `prefix`."""
        return {name: self._scalars[SUM, name][-1] for name in self._names(SUM) if name.startswith(prefix)}

    def _names(self, kind: str) -> list[str]:
        """Return the names of the scalars that are of this kind, in the order in which they came first."""
        return [name for of, name in self._scalars if of == kind]

    def _add_up(
        self, reduce: Callable[[torch.Tensor], torch.Tensor], processes: int
    ) -> tuple[dict[tuple[str, str], float], list[float]]:
        """
        Read the scalars, all at once, and add them up over micro-batches and processes, in double precision. Also
        returns the tokens in the loss of each micro-batch.
        """
        scalars = [scalar.double() for of_key in self._scalars.values() for scalar in of_key]
        numbers = iter(torch.stack(scalars).tolist() if scalars else [])
        values = {key: [next(numbers) for _ in of_key] for key, of_key in self._scalars.items()}
        tokens = values.get((COUNT, IN_LOSS), [])
        sums = {key: sum(of_key) for key, of_key in values.items()}
        for kind in self.KINDS:
            sums[COUNT, f"{kind}_forward_calls"] = self.calls[kind]
            sums[COUNT, f"tokens_processed_{kind}"] = self.tokens[kind]
        if processes > 1:
            here = torch.tensor([*sums.values(), *tokens], dtype=torch.float64, device=self.device)
            everywhere = reduce(here).tolist()
            tokens = everywhere[len(sums) :]
            sums = dict(zip(sums, everywhere, strict=False))
        return sums, tokens

    def end_step(self, reduce: Callable[[torch.Tensor], torch.Tensor], processes: int = 1) -> dict[str, float]:
        """
        Stop the clock, and return the row without the keys that only the trainer knows.

        Counts are sums over processes; times are this process's.

        Args:
            reduce (`Callable`): Sums a tensor over processes.
            processes (`int`): Their number.
        """
        self.timer.leave()
        sums, tokens = self._add_up(reduce, processes)
        self.micro_batch_tokens = tokens
        self.tokens_of_means = {name: sums[TOKENS, name] for name in self._names(SUM)}
        seconds = time.perf_counter() - self._began
        self._began = None

        row: dict[str, float] = {}
        for name in self._names(SUM):
            if self.tokens_of_means[name]:
                row[name] = sums[SUM, name] / self.tokens_of_means[name]
        for (name, of_tokens), values in self._averages.items():
            mean = weighted_mean(values, tokens if of_tokens else [1.0] * len(values))
            if mean is not None:
                row[name] = mean
        for (kind, name), number in sums.items():
            if kind == TOTAL:
                row[name] = number / processes
            elif kind == COUNT:
                row[name] = int(number)
        in_loss = row.pop(IN_LOSS, 0)

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
