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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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


@dataclass
class Span:
    """Measures a span of a stage: its seconds are there once it is over."""

    seconds: float = 0.0


class StageTimer:
    """
    Counts wall-clock seconds by stage. Stages nest, and a second belongs to the innermost stage only.

    On a GPU the device is synchronised at each change of stage. `overhead` is what the bookkeeping itself takes.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.seconds: dict[str, float] = defaultdict(float)
        self.overhead = 0.0
        self.stack: list[str] = []
        self._since = 0.0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.enter(name)
        try:
            yield
        except BaseException:
            with suppress(RuntimeError):  # a GPU that has failed fails again here, and would hide the first error
                self.leave()
            raise
        self.leave()

    @contextmanager
    def span(self, name: str) -> Iterator[Span]:
        """Time a stage in this context, and measure its own seconds too."""
        span = Span()
        before = self.seconds[name]
        with self.stage(name):
            yield span
        span.seconds = self.seconds[name] - before

    def enter(self, name: str) -> None:
        self._settle()
        self.stack.append(name)

    def leave(self) -> None:
        self._settle()
        self.stack.pop()

    def clear(self) -> None:
        self.seconds.clear()
        self.overhead = 0.0
        self.stack.clear()

    def _settle(self) -> None:
        """Give the time since the last change of stage to the stage on top."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # the wait is the stage's own work, still running on the device
        now = time.perf_counter()
        if self.stack:
            self.seconds[self.stack[-1]] += now - self._since
        self._since = time.perf_counter()
        self.overhead += self._since - now


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
        self._in_loss: torch.Tensor | int = 0
        self._sums: dict[str, torch.Tensor] = {}  # of values and of tokens
        self._totals: dict[str, torch.Tensor] = {}
        self._averages: dict[str, list[float]] = defaultdict(list)
        self._counts: dict[str, torch.Tensor] = {}

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
        self._in_loss = self._in_loss + mask.sum()

    def add_mean(self, name: str, values: torch.Tensor, mask: torch.Tensor) -> None:
        """Add to the mean over tokens of the step. `values` and `mask` have shape `(B, T)`."""
        total = zero_masked(values.detach(), mask).sum()
        pair = torch.stack([total.double(), mask.sum().double()])
        self._sums[name] = self._sums.get(name, 0.0) + pair

    def add_total(self, name: str, value: torch.Tensor) -> None:
        """Add a scalar to a sum over the micro-batches of the step."""
        self._totals[name] = self._totals.get(name, 0.0) + value.detach().double()

    def add_average(self, name: str, value: float) -> None:
        """Add to a plain average over the micro-batches of the step."""
        self._averages[name].append(value)

    def add_count(self, name: str, count: torch.Tensor) -> None:
        """Add to a count over micro-batches and processes."""
        self._counts[name] = self._counts.get(name, 0) + count

    def peek_mean(self, name: str, reduce: Callable[[torch.Tensor], torch.Tensor]) -> float | None:
        """Return the step's mean over tokens so far, over all processes; `None` where nothing was measured."""
        if name not in self._sums:
            return None
        total, count = reduce(self._sums[name]).tolist()
        return total / count if count else None

    def named_sums(self, prefix: str) -> list[tuple[str, torch.Tensor]]:
        """Return the step's sums over tokens so far, of the means whose names begin with `prefix`."""
        return [(name, pair[0]) for name, pair in self._sums.items() if name.startswith(prefix)]

    def end_step(self, reduce: Callable[[torch.Tensor], torch.Tensor], processes: int = 1) -> dict[str, float]:
        """
        Stop the clock, and return the row without the keys that only the trainer knows.

        Counts are sums over processes; times are this process's.

        Args:
            reduce (`Callable`): Sums a tensor over processes.
            processes (`int`): Their number.
        """
        self.timer.leave()
        seconds = time.perf_counter() - self._began
        self._began = None
        row: dict[str, float] = {}
        for name in self._sums:
            mean = self.peek_mean(name, reduce)
            if mean is not None:
                row[name] = mean
        for name, values in self._averages.items():
            row[name] = sum(values) / len(values)
        for name, total in self._totals.items():
            row[name] = (reduce(total) / processes).item()
        for name, count in self._counts.items():
            row[name] = int(reduce(count))
        pairs = [(self.calls[kind], self.tokens[kind]) for kind in self.KINDS]
        pairs.append((int(self._in_loss), 0))
        *counts, (in_loss, _) = reduce(torch.tensor(pairs, device=self.device)).tolist()
        for kind, (calls, tokens) in zip(self.KINDS, counts, strict=True):
            row[f"{kind}_forward_calls"] = calls
            row[f"tokens_processed_{kind}"] = tokens
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


class UpdateNorm:
    """
    Measures the norm of an optimizer's last update, over all its parameters.

    Args:
        optimizer (`torch.optim.Optimizer`): Gets hooks; its parameters are copied before every update.
    """

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.value: float | None = None
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []
        optimizer.register_step_pre_hook(self._copy)
        optimizer.register_step_post_hook(self._measure)

    def _copy(self, optimizer, args, kwargs) -> None:
        params = [param.detach() for group in optimizer.param_groups for param in group["params"]]
        self._before = [(param, param.clone()) for param in params]

    def _measure(self, optimizer, args, kwargs) -> None:
        squares = [(param - old).float().square().sum() for param, old in self._before]
        self.value = torch.stack(squares).sum().sqrt().item()
        self._before = []


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
