"""
The step of one token, recorded as a CUDA graph and replayed for later tokens and later batches.

A token takes over a thousand kernels, and a fast GPU finishes each before Python launches the next. A graph repeats
the same kernels on the same memory, so nothing in it may depend on a row's length: keys and values are read up to the
end of a span, the mask hides unwritten places, and tensors have the place and position of the new token. Random
numbers are drawn before a replay.

A later batch gets the same memory, and a replay reads the weights that are then at their addresses.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from peft.tuners.tuners_utils import BaseTunerLayer

from ..errors import RunError, first_line


SPAN = 128  # tokens per recording; recording takes as long as about ten tokens
MOST = 64  # recordings; at a thousand tokens and 64 rows there are fewer
TILE = 8  # rows; fewer take a GPU as long
SPARE = 1.25  # times the room of a batch that may be allocated, so that later ones fit


class AtMost(NamedTuple):
    """A size of a batch (`name`), or `most` if that is less."""

    name: str
    most: int


Size = int | str | AtMost
Take = Callable[[str, tuple[Size, ...], torch.dtype], torch.Tensor]


def number_of(size: Size, sizes: dict[str, int]) -> int:
    """Return a size as a number, by the `sizes` of a batch."""
    if isinstance(size, AtMost):
        return min(sizes[size.name], size.most)
    return sizes.get(size, size)


class RecordingError(RunError):
    """A CUDA graph could not be recorded. In some versions of torch the GPU is unusable afterwards."""


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a GPU's stream for recording, reused: each keeps 33 MiB for cuBLAS."""
    return torch.cuda.Stream(device)


class Recording:
    """
    A recorded computation on a GPU.

    Before the recording `compute` is called once, which prepares libraries, and then `undo`. Recordings that share a
    `pool` use the same memory for what they compute. Raises [`RecordingError`].
    """

    def __init__(self, compute: Callable[[], None], undo: Callable[[], None], device: torch.device, pool):
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device):
            current = torch.cuda.current_stream()
            side = side_stream(device)
            side.wait_stream(current)
            try:
                with torch.cuda.stream(side):
                    compute()
            finally:
                current.wait_stream(side)  # work started there writes into memory that is reused
            undo()
            try:
                # Other threads, such as a data loader's that pins memory, may continue meanwhile.
                with torch.cuda.graph(self._graph, pool=pool, stream=side, capture_error_mode="thread_local"):
                    compute()
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                cause = first_line(error.__context__ or error)  # the first of two errors is more specific
                raise RecordingError(
                    f"The forward of a token could not be recorded as a CUDA graph ({cause}). Set compact_generation: "
                    '"off".'
                ) from error
            finally:
                torch.cuda.set_stream(current)  # torch does not do this after a failure
        self.pool = self._graph.pool()

    def replay(self) -> None:
        self._graph.replay()


class Recordings:
    """
    Recordings of a token's step, by number of rows and span of places, and their memory.

    They are dropped for another model, another sampling, another address of a weight, or a larger batch.

    Attributes:
        lasts (`bool`): Whether those of the last batch may be replayed in a later one.
    """

    def __init__(self):
        self.clear()

    def clear(self) -> None:
        self._of: tuple | None = None
        self.lasts = False
        self._made: OrderedDict[tuple[int, int], Recording] = OrderedDict()
        self._memory: dict[str, torch.Tensor] = {}
        self._sizes = {"rows": 0, "length": 0}
        self._pool_bytes = 0

    @property
    def bytes(self) -> int:
        """Their memory on the device."""
        return self._pool_bytes + sum(tensor.nbytes for tensor in self._memory.values())

    def begin(self, model: torch.nn.Module, settings: tuple, copies: torch.Tensor, longest: int) -> torch.Tensor:
        """
        Begin a batch of up to `longest` tokens. Returns `copies` with the last one repeated up to a number of rows for
        which there may be recordings.

        Args:
            settings (`tuple`): Numbers, besides the weights, of which a recording consists.
        """
        self._device = copies.device
        rows = row_size(len(copies))
        fits = {"rows": rows, "length": -(-longest // SPAN) * SPAN}
        found = fingerprint(model, self._device)
        of = (settings, found)
        is_larger = any(fits[name] > self._sizes[name] for name in fits)
        if of != self._of or is_larger or found is None:
            spare = {name: max(fits[name], self._sizes[name]) for name in fits}
            is_spare = spare["rows"] * spare["length"] <= SPARE * fits["rows"] * fits["length"]
            self.clear()
            self._of = of
            self._sizes = spare if is_spare else fits
        self.lasts = found is not None
        self._batch = fits
        return torch.cat([copies, copies[-1:].expand(rows - len(copies))])

    def take(self, name: str, sizes: tuple[Size, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return zeros, at the same address for every batch; a size may be `"rows"` or `"length"`."""
        if name not in self._memory:
            whole = [number_of(size, self._sizes) for size in sizes]
            self._memory[name] = torch.empty(whole, dtype=dtype, device=self._device)
        shown = tuple(slice(number_of(size, self._batch)) for size in sizes)
        return self._memory[name][shown].zero_()

    def replay(self, rows: int, end: int, compute: Callable[[], None], state: list[torch.Tensor]) -> None:
        """Run `compute`, which advances `state`, for a span of places up to `end`."""
        recording = self._made.pop((rows, end), None)
        if recording is None:
            pool = next(reversed(self._made.values())).pool if self._made else None
            if len(self._made) == MOST:
                self._made.popitem(last=False)
            before = [tensor.clone() for tensor in state]

            def undo() -> None:
                for tensor, value in zip(state, before, strict=True):
                    tensor.copy_(value)

            reserved = reserved_bytes(self._device)
            recording = Recording(compute, undo, self._device, pool)
            self._pool_bytes += reserved_bytes(self._device) - reserved
        self._made[rows, end] = recording
        recording.replay()


def row_size(number: int) -> int:
    """Return the smallest number of rows, at least `number`, for which recordings are made."""
    if number > TILE:
        return -(-number // TILE) * TILE
    return 2 ** (number - 1).bit_length()


def smaller_size(number: int) -> int:
    """Return the rows of a batch with `number` unfinished ones: 8, 16, 24, 32, 48, 64, 96, …"""
    power = 2 ** (number - 1).bit_length()
    between = power * 3 // 4
    fits = number <= between and between % TILE == 0
    return max(TILE, between if fits else power)


def fingerprint(model: torch.nn.Module, device: torch.device) -> list | None:
    """
    Return all that a recording depends on besides values of weights; `None` under autocast, which casts weights for
    one batch.
    """
    autocasts = torch.is_autocast_enabled(device.type)
    found = [id(model), model.training, autocasts, torch.get_autocast_dtype(device.type)]
    for module in model.modules():
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None:
                found.append(tensor.data_ptr())
                if autocasts and tensor.requires_grad and tensor.dtype == torch.float32:
                    return None
        if isinstance(module, BaseTunerLayer):
            found += [*module.active_adapters, module.disable_adapters, *module.merged_adapters]
            found += getattr(module, "scaling", {}).values()
    return found


def reserved_bytes(device: torch.device) -> int:
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0


def usable_bytes(device: torch.device) -> int:
    """Return the bytes that this process can use on a GPU, without those of other processes; 0 on another device."""
    if device.type != "cuda":
        return 0
    return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)


class RecordedSteps:
    """
    Writes every row's next token by recordings.

    Finished rows stay until a smaller size fits: each size needs its own recordings.
    """

    def __init__(self, recordings: Recordings, forward, rows, logits: torch.Tensor):
        self._recordings = recordings
        self._forward = forward
        self._rows = rows
        self._end = 0
        self._logits: torch.Tensor | None = None  # of a step that does not choose tokens
        if not rows.choice.is_plain:
            self._logits = recordings.take("logits", ("rows", logits.shape[1]), logits.dtype)
        forward.begin_recording()

    def __call__(self, length: int) -> None:
        rows = self._rows
        if length > self._end:
            self._end = -(-length // SPAN) * SPAN
            self._forward.show_span(self._end)
        rows.draw_numbers()
        state = [rows.place, rows.alive, rows.sound, rows.lengths, *self._forward.advancing]
        self._recordings.replay(len(rows.ids), self._end, self._compute, state)
        if self._logits is not None:
            rows.write(self._logits[: len(rows.ids)])

    def _compute(self) -> None:
        rows = self._rows
        logits = self._forward.recorded_logits(self._end)
        if self._logits is None:
            rows.write(logits)
        else:
            self._logits[: len(rows.ids)].copy_(logits)

    def rows_to_keep(self, alive: list[bool]) -> list[bool]:
        """Return whether each row stays: unfinished ones, and finished ones up to a size."""
        unfinished = sum(alive)
        size = smaller_size(unfinished)
        if size >= len(alive):
            return [True] * len(alive)
        spare = size - unfinished
        kept = []
        for is_alive in alive:
            kept.append(is_alive or spare > 0)
            spare -= not is_alive
        return kept

    def close_up(self, selection, number: int) -> None:
        self._forward.close_up(selection, number)
