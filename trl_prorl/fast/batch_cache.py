"""
The cache of a batch whose rows are repeated prompts, and drop out when they are finished.

Memory is allocated once, for all tokens of the batch.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
)

from .prefix import ALIGNMENT
from .recording import AtMost, Size, Take, number_of


FULL, SLIDING = "full_attention", "sliding_attention"  # kinds of transformers' `layer_types`


class Room:
    """Memory for the `rows` of one batch, of up to `length` tokens."""

    def __init__(self, rows: int, length: int, device: torch.device):
        # a GPU's kernel copies a mask with other strides in every layer
        self._sizes = {"rows": rows, "length": length + -length % ALIGNMENT}
        self._device = device

    def take(self, name: str, sizes: tuple[Size, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return zeros; a size may be `"rows"` or `"length"`."""
        return torch.zeros([number_of(size, self._sizes) for size in sizes], dtype=dtype, device=self._device)


def places_of(window: int | None) -> str | AtMost:
    """Return a row's places in a layer, as a size to take."""
    return "length" if window is None else AtMost("length", window)


def kept_places(length: int, kept: int, window: int | None, device: torch.device) -> torch.Tensor:
    """Return where the last `kept` of `length` tokens are, `(kept,)`: a window's places are a ring."""
    places = torch.arange(length - kept, length, device=device)
    return places if window is None else places % window


class RoomyLayer(DynamicLayer):
    """
    Attention cache with room for later tokens, allocated once: growing blocks would fragment a GPU's memory. Starts
    with rows, in any repetition, of a layer's keys and values `(P, H, L, D)`.

    With a sliding window, a token takes the place of the one that leaves the window. (Keys are rotated already, and
    attention does not depend on their order.)

    Attributes:
        window (`int`, *optional*): Tokens that attention reads, if not all.
        kind (`str`): Kind of attention, as in transformers' `layer_types`.
    """

    def __init__(self, layer: DynamicLayer, rows: torch.Tensor, take: Take, name: str = ""):
        super().__init__()
        self.dtype = layer.keys.dtype
        self.device = layer.keys.device
        self.is_initialized = True
        self.window: int | None = getattr(layer, "sliding_window", None)
        self.kind = FULL if self.window is None else SLIDING
        self._room = []
        self._length = layer.get_seq_length()
        kept = layer.keys.shape[-2]
        places = kept_places(self._length, kept, self.window, self.device)
        for which, old in (("keys", layer.keys), ("values", layer.values)):
            _, heads, _, size = old.shape
            # zeros: no NaN under a mask
            room = take(f"{which} {name}", ("rows", heads, places_of(self.window), size), old.dtype)
            room[:, :, places] = old[rows]
            self._room.append(room)
        self._place: torch.Tensor | None = None
        self._show(self._length)

    def show_span(self, end: int, place: torch.Tensor) -> None:
        """Show the first `end` places of every row, and write the next token into `place` `(1,)`."""
        self._place = place
        self._show(end)

    def _show(self, length: int) -> None:
        keys, values = self._room
        self.keys = keys[:, :, :length]
        self.values = values[:, :, :length]

    def update(self, key_states, value_states, *args, **kwargs):
        """Write a token of each row, `(R, H, 1, D)`. Returns the keys and values that are shown."""
        if self._place is not None:
            for shown, new in zip((self.keys, self.values), (key_states, value_states), strict=True):
                shown.index_copy_(2, self._place, new.to(shown.dtype))  # rotation makes keys fp32 under autocast
            return self.keys, self.values
        place = self._length if self.window is None else self._length % self.window
        for room, new in zip(self._room, (key_states, value_states), strict=True):
            room[:, :, place : place + 1] = new
        self._length += 1
        self._show(self._length)
        return self.keys, self.values

    def close_up(self, selection: "Selection") -> None:
        """Keep some rows; only rows that move are copied."""
        length = self.keys.shape[-2]
        for place, room in enumerate(self._room):
            room[selection.places, :, :length] = room[selection.movers, :, :length]
            self._room[place] = room[: len(selection.rows)]
        self._show(length)


class RoomyState(LinearAttentionLayer):
    """
    A layer's state in memory that stays, with rows in any repetition. Transformers' models write into it in place.
    """

    def __init__(self, layer: LinearAttentionLayer, rows: torch.Tensor, take: Take, name: str):
        super().__init__()
        vars(self).update(vars(layer))  # also of which kinds there are states

        def in_room(state: torch.Tensor, which: str) -> torch.Tensor:
            return take(f"{which} {name}", ("rows", *state.shape[1:]), state.dtype).copy_(state[rows])

        self.conv_states = {
            place: state if state is None else in_room(state, f"convolution {place}")
            for place, state in layer.conv_states.items()
        }
        self.recurrent_states = {
            place: state if state is None else in_room(state, f"state {place}")
            for place, state in layer.recurrent_states.items()
        }

    def close_up(self, selection: "Selection") -> None:
        for states in (self.conv_states, self.recurrent_states):
            for place, state in states.items():
                if state is not None:
                    states[place] = selection.close_up(state)


def states_of(layer: LinearAttentionLayer) -> list[torch.Tensor]:
    """Return all of a layer's state, each of shape `(R, …)`."""
    states = (*layer.conv_states.values(), *layer.recurrent_states.values())
    return [state for state in states if state is not None]


class Selection(NamedTuple):
    """Kept rows of a batch in their new order: the last rows, `movers`, move into `places` of dropped ones."""

    kept: list[int]
    rows: torch.Tensor
    places: torch.Tensor
    movers: torch.Tensor

    @classmethod
    def from_rows(cls, alive: list[bool], device: torch.device) -> "Selection":
        left = sum(alive)
        rows = list(range(left))
        places = [row for row in rows if not alive[row]]
        movers = [row for row in range(left, len(alive)) if alive[row]]
        for place, mover in zip(places, movers, strict=True):
            rows[place] = mover
        all_three = torch.tensor([*rows, *places, *movers], dtype=torch.long).to(device)
        return cls(rows, *all_three.split([left, len(places), len(places)]))

    def close_up(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor[self.places] = tensor[self.movers]
        return tensor[: len(self.kept)]


def cache_among(values: Mapping[str, Any]) -> Cache:
    """Return a forward's cache, which transformers 5.24 renamed."""
    name = "cache" if "cache" in values else "past_key_values"
    return values[name]


def repeat_rows(cache: Cache, rows: torch.Tensor, take: Take, makes_rings: bool) -> None:
    """
    Select rows of a cache, in place, with room for later tokens. `makes_rings` must be `False` if transformers makes
    the masks: it expects the keys of a sliding window in their order.
    """
    for place, layer in enumerate(cache.layers):
        is_window = type(layer) is DynamicSlidingWindowLayer and makes_rings
        if (type(layer) is DynamicLayer or is_window) and layer.get_seq_length() > 0:
            cache.layers[place] = RoomyLayer(layer, rows, take, str(place))
        elif type(layer) is LinearAttentionLayer:
            cache.layers[place] = RoomyState(layer, rows, take, str(place))
        else:
            select_rows(layer, rows)


def close_up(cache: Cache, selection: Selection) -> None:
    for layer in cache.layers:
        if isinstance(layer, (RoomyLayer, RoomyState)):
            layer.close_up(selection)
        else:
            select_rows(layer, selection.rows)


def select_rows(layer: CacheLayerMixin | LinearAttentionCacheLayerMixin, rows: torch.Tensor) -> None:
    if isinstance(layer, LinearAttentionCacheLayerMixin):
        layer.reorder_cache(rows)  # despite its name (beam search), selects any rows
    else:
        layer.batch_select_indices(rows)
