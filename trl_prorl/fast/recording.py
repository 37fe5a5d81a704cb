"""
The forward of one token, recorded once as a CUDA graph and replayed for later tokens.

A token takes over a thousand kernels, and a fast GPU finishes each before Python launches the next. A graph repeats
the same kernels on the same memory, so nothing in it may depend on a row's length: keys and values are read up to the
end of a span, the mask hides unwritten places, and a tensor has the place of the new token.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from transformers.cache_utils import Cache

from ..errors import RunError, first_line
from .prefix import without_cudnn


SPAN = 128  # tokens per recording; recording takes as long as about ten tokens


class RecordingError(RunError):
    """A CUDA graph could not be recorded. In some versions of torch the GPU is unusable afterwards."""


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a GPU's stream for recording, reused: each keeps 33 MiB for cuBLAS."""
    return torch.cuda.Stream(device)


class Recording:
    """
    A recorded computation on a GPU.

    `compute` is called once before the recording: a first call prepares libraries. `pool` is memory of an earlier
    recording that is no longer replayed. Raises [`RecordingError`].
    """

    def __init__(self, compute: Callable[[], None], device: torch.device, pool):
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


class RecordedForward:
    """
    Computes every row's next logits by a recording.

    The cache's layers are empty or can show a span of places ([`~trl_prorl.fast.compact.RoomyLayer`]). `model_kwargs`
    has positions up to the next token. Finished rows are dropped when less than `kept_share` of the rows is
    unfinished: dropping needs another recording.
    """

    kept_share = 0.75

    def __init__(self, model, cache: Cache, mask, model_kwargs: dict[str, Any], longest: int):
        self._model = model
        self._layers = [layer for layer in cache.layers if hasattr(layer, "show_span")]
        self._mask = mask
        self._model_kwargs = model_kwargs
        self._longest = longest
        self._position = model_kwargs["position_ids"][:, -1:].clone()
        self._place = torch.zeros(1, dtype=torch.long, device=self._position.device)
        self._end = 0
        self._recording: Recording | None = None

    def __call__(self, written: torch.Tensor, length: int) -> torch.Tensor:
        """Return the logits `(R, V)` of the token after `written` `(R, length)`. The next call overwrites them."""
        if length > self._end:
            self._record(written, length)
        self._token.copy_(written[:, -1:])
        self._recording.replay()
        return self._logits

    def _record(self, written: torch.Tensor, length: int) -> None:
        place = length - 1
        self._end = min(self._longest, place - place % SPAN + SPAN)
        self._token = written[:, -1:].clone()
        self._place.fill_(place)
        position = self._position.clone()
        for layer in self._layers:
            layer.show_span(self._end, self._place)
        self._seen = self._mask.hide_from(place, self._end)
        # Torch requires shared memory to be in use: the last recording lives until the next one is made.
        pool = None if self._recording is None else self._recording.pool
        self._recording = Recording(self._compute, self._token.device, pool)
        self._place.fill_(place)  # the call before the recording has advanced them
        self._position.copy_(position)

    def _compute(self) -> None:
        self._seen.index_fill_(3, self._place, 0.0)
        inputs = self._model.prepare_inputs_for_generation(self._token, next_sequence_length=1, **self._model_kwargs)
        inputs |= {"position_ids": self._position, "attention_mask": self._seen, "input_ids": self._token}
        with without_cudnn(self._token.device):
            self._logits = self._model(**inputs, return_dict=True).logits[:, -1]
        self._place += 1
        self._position += 1

    def close_up(self, selection, number: int) -> None:
        for layer in self._layers:
            layer.close_up(selection)
        self._mask.close_up(selection)
        self._position = self._position[selection.rows]
        self._end = 0  # the next call records
