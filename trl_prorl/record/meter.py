"""The cost and the measurements of a run: forward calls, tokens, stage times and means over tokens, one row per step.

The meter only observes. Absent means not measured, never 0.
"""

import json
import logging
import os
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ..files import free_name, replaced
from ..objective.anchors import ANCHORS
from ..objective.masks import zero_masked
from .run_files import EVALUATIONS_FILE, EVENTS, EVENTS_FILE, METRICS, METRICS_FILE, OBJECT, read_jsonl
from .shapes import Shape


logger = logging.getLogger(__name__)


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
        if self._thread.ident is not None:
            self._thread.join()
        return self.readings


IN_LOSS = "tokens_in_loss"  # a count that is no entry of the row


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
        self._clear()

    def _clear(self) -> None:
        self.calls: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        # Scalars on the device, a row for each micro-batch; the host reads them at the end of the step.
        self._means: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = defaultdict(list)  # sum of values, tokens
        self._totals: dict[str, list[tuple[torch.Tensor]]] = defaultdict(list)
        self._counts: dict[str, list[tuple[torch.Tensor]]] = defaultdict(list)
        self._averages: dict[str, list[float]] = defaultdict(list)

    @property
    def open(self) -> bool:
        """Whether a step is under way."""
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
            self._means[name].append((zero_masked(of_tokens.detach(), counts).sum(), tokens))

    def add_total(self, name: str, value: torch.Tensor) -> None:
        """Add a scalar to a sum over the micro-batches of the step."""
        self._totals[name].append((value.detach(),))

    def add_average(self, name: str, value: float) -> None:
        """Add to a plain average over the micro-batches of the step."""
        self._averages[name].append(value)

    def add_count(self, name: str, count: torch.Tensor) -> None:
        """Add to a count over micro-batches and processes."""
        self._counts[name].append((count,))

    def newest_sums(self, prefix: str) -> dict[str, torch.Tensor]:
        """Return the newest micro-batch's sums over tokens, of the means whose names begin with `prefix`."""
        return {name: rows[-1][0] for name, rows in self._means.items() if name.startswith(prefix)}

    def _add_up(self) -> dict[str, list[float]]:
        """Read what was measured, all at once, and add it up over the micro-batches, in double precision."""
        measured = {**self._means, **self._totals, **self._counts}
        numbers = iter(read_scalars([scalar for rows in measured.values() for row in rows for scalar in row]))
        sums = {}
        for name, rows in measured.items():
            sums[name] = [0.0] * len(rows[0])
            for row in rows:
                for place in range(len(row)):
                    sums[name][place] += next(numbers)
        return sums

    def _add_processes(
        self, sums: Mapping[str, list[float]], reduce: Callable[[torch.Tensor], torch.Tensor]
    ) -> dict[str, list[float]]:
        """Add sums over processes."""
        here = [number for numbers in sums.values() for number in numbers]
        everywhere = iter(reduce(torch.tensor(here, dtype=torch.float64, device=self.device)).tolist())
        return {name: [next(everywhere) for _ in numbers] for name, numbers in sums.items()}

    def end_step(self, reduce: Callable[[torch.Tensor], torch.Tensor], processes: int = 1) -> dict[str, float]:
        """
        Stop the clock, and return the row without the keys that only the trainer knows.

        Counts are sums over processes; times are this process's.

        Args:
            reduce (`Callable`): Sums a tensor over processes.
            processes (`int`): Their number.
        """
        self.timer.leave()
        sums = self._add_up()
        for kind in self.KINDS:
            sums[f"{kind}_forward_calls"] = [self.calls[kind]]
            sums[f"tokens_processed_{kind}"] = [self.tokens[kind]]
        if processes > 1:
            sums = self._add_processes(sums, reduce)
        seconds = time.perf_counter() - self._began
        self._began = None
        row: dict[str, float] = {}
        for name in self._means:
            total, tokens = sums[name]
            if tokens:
                row[name] = total / tokens
        for name, values in self._averages.items():
            row[name] = sum(values) / len(values)
        for name in self._totals:
            (total,) = sums[name]
            row[name] = total / processes
        for name in self._counts:
            (count,) = sums[name]
            row[name] = int(count)
        in_loss = row.pop(IN_LOSS, 0)
        for kind in self.KINDS:
            for name in (f"{kind}_forward_calls", f"tokens_processed_{kind}"):
                (count,) = sums[name]
                row[name] = int(count)
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


def read_scalars(scalars: Sequence[torch.Tensor]) -> list[float]:
    """Read scalars of one device, floats and integers, in double precision. The host waits once for all of them."""
    floats = [scalar for scalar in scalars if scalar.is_floating_point()]
    others = [scalar for scalar in scalars if not scalar.is_floating_point()]
    groups = [torch.stack(group).double() for group in (floats, others) if group]
    if not groups:
        return []
    numbers = torch.cat(groups).tolist()
    from_floats = iter(numbers[: len(floats)])
    from_others = iter(numbers[len(floats) :])
    return [next(from_floats) if scalar.is_floating_point() else next(from_others) for scalar in scalars]


class UpdateNorm:
    """
    Measures the norm of an optimizer's last update, over all its parameters.

    Args:
        optimizer (`torch.optim.Optimizer`): Gets hooks; its parameters are copied before every update.
    """

    def __init__(self, optimizer: torch.optim.Optimizer):
        self._value: float | None = None
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []
        optimizer.register_step_pre_hook(self._copy)
        optimizer.register_step_post_hook(self._measure)

    def _copy(self, optimizer, args, kwargs) -> None:
        params = [param.detach() for group in optimizer.param_groups for param in group["params"]]
        self._before = [(param, param.clone()) for param in params]

    def _measure(self, optimizer, args, kwargs) -> None:
        squares = [(param - old).float().square().sum() for param, old in self._before]
        self._value = torch.stack(squares).sum().sqrt().item()
        self._before = []

    def take(self) -> float | None:
        """Return the norm once; `None` if the optimizer has not updated since, as where a scaler left a step out."""
        value = self._value
        self._value = None
        return value


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
        last = torch.cuda.utilization(device)
        row["gpu_utilization"] = statistics.fmean([*readings, last])
    except ModuleNotFoundError:
        tell_of_missing_nvml()
    except Exception:  # as in `Utilization`
        pass
    return row


@cache
def tell_of_missing_nvml() -> None:
    """Say, once in a process, what brings `gpu_utilization` into the record."""
    package = "amdsmi" if torch.version.hip else "nvidia-ml-py"
    logger.warning("gpu_utilization is not recorded, because its package is missing: pip install %s.", package)


class JsonLines:
    """
    Writes a file with one JSON object on each line, line by line.

    Args:
        path (`str` or `os.PathLike`): The file.
        keep (`Callable`, *optional*): Continues a file: the lines for which this is true stay, those that a run cut
            short left behind are dropped. `None` begins a new file; one that is there is kept under a numbered name.
        shape (`Shape`): The shape of each line.

    Raises:
        `InputError`: A line of a file that is continued cannot be read.
    """

    def __init__(self, path: str | os.PathLike, keep: Callable[[dict], bool] | None = None, shape: Shape = OBJECT):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if keep is None:
            if self.path.exists() and self.path.stat().st_size:
                self.path.rename(free_name(self.path))
            self.path.touch()
        else:
            rows = [json.dumps(row) + "\n" for row in read_jsonl(self.path, shape) if keep(row)]
            with replaced(self.path) as aside:
                aside.write_text("".join(rows))

    def write(self, row: dict[str, Any]) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps(row) + "\n")

    def change_last(self, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> bool:
        """
        Replace the last row by what `change` makes of it, unless that is `None`.

        The new line is written over the old one in one go, so that a process killed in between leaves one of the two.

        Returns:
            `bool`: Whether the row was replaced.
        """
        text = self.path.read_bytes()
        start = text.rfind(b"\n", 0, -1) + 1
        row = change(json.loads(text[start:])) if text else None
        if row is None:
            return False
        line = (json.dumps(row) + "\n").encode()
        with open(self.path, "r+b", buffering=0) as file:
            file.seek(start)
            file.write(line)
            file.truncate()
        return True


def check_record(run_dir: str | os.PathLike) -> None:
    """
    Read the record that a resume continues.

    Raises:
        `InputError`: A line cannot be read; the message names it.
    """
    for file, shape in ((METRICS_FILE, METRICS), (EVENTS_FILE, EVENTS), (EVALUATIONS_FILE, METRICS)):
        read_jsonl(Path(run_dir) / file, shape)
