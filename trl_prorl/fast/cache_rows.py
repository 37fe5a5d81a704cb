"""The rows of a cache: repeated for the completions of a prompt, dropped where a completion has ended."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, LinearAttentionCacheLayerMixin


class RoomyLayer(DynamicLayer):
    """
    Is the cache of an attention layer, with room for all tokens to come.

    A new token is written into its place, where [`~transformers.DynamicLayer`] copies the whole cache to lengthen it
    by one. The room is allocated once: blocks that grow would leave a GPU's allocator with ever larger ones, none of
    which is used again.

    Args:
        keys (`torch.Tensor` of shape `(P, H, L, D)`): What it holds at first.
        values (`torch.Tensor` of shape `(P, H, L, D)`): The same.
        rows (`torch.LongTensor` of shape `(R,)`): Which of these rows, each as often as it stands there.
        length (`int`): Tokens for which there is room in all.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, rows: torch.Tensor, length: int):
        super().__init__()
        self.dtype = keys.dtype
        self.device = keys.device
        self.is_initialized = True
        self._room = []
        for old in (keys, values):
            _, heads, filled, size = old.shape
            room = old.new_empty((len(rows), heads, max(length, filled), size))
            room[:, :, :filled] = old[rows]
            self._room.append(room)
        self._show(filled)

    def _show(self, length: int) -> None:
        keys, values = self._room
        self.keys = keys[:, :, :length]
        self.values = values[:, :, :length]

    def update(self, key_states, value_states, *args, **kwargs):
        length = self.keys.shape[-2]
        end = length + key_states.shape[-2]
        for room, new in zip(self._room, (key_states, value_states), strict=True):
            room[:, :, length:end] = new
        self._show(end)
        return self.keys, self.values

    def close_up(self, selection: "Selection") -> None:
        """Keep some rows, in place: only a row that takes the place of another is copied."""
        length = self.keys.shape[-2]
        for place, room in enumerate(self._room):
            room[selection.places, :, :length] = room[selection.movers, :, :length]
            self._room[place] = room[: len(selection.rows)]
        self._show(length)


class Selection(NamedTuple):
    """
    Says which rows of a batch are kept, of which the last take the places of those that are not.

    Attributes:
        kept (`list[int]`): The rows, in their new order.
        rows (`torch.LongTensor` of shape `(R,)`): The same.
        places, movers (`torch.LongTensor` of shape `(M,)`): The rows that get another's, and those others.
    """

    kept: list[int]
    rows: torch.Tensor
    places: torch.Tensor
    movers: torch.Tensor

    @classmethod
    def of(cls, alive: list[bool], device: torch.device) -> "Selection":
        """Keep the rows that are alive, so that dropping a row copies at most one row of the cache."""
        left = sum(alive)
        rows = list(range(left))
        places = [row for row in rows if not alive[row]]
        movers = [row for row in range(left, len(alive)) if alive[row]]
        for place, mover in zip(places, movers, strict=True):
            rows[place] = mover
        all_three = torch.tensor([*rows, *places, *movers], dtype=torch.long).to(device)
        return cls(rows, *all_three.split([left, len(places), len(places)]))


def cache_among(values: Mapping[str, Any]) -> Cache:
    """Return the cache among a forward's arguments or results, whose name transformers 5.24 has changed."""
    name = "cache" if "cache" in values else "past_key_values"
    return values[name]


def repeat_rows(cache: Cache, rows: torch.Tensor, length: int) -> None:
    """
    Select rows of a cache, in place, each any number of times, and make room for tokens to come.

    Args:
        cache ([`~transformers.Cache`]): The cache.
        rows (`torch.LongTensor` of shape `(R,)`): Their indices.
        length (`int`): Tokens of a row in all.
    """
    for place, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and layer.get_seq_length() > 0:
            cache.layers[place] = RoomyLayer(layer.keys, layer.values, rows, length)
        else:
            select_rows(layer, rows)


def close_up(cache: Cache, selection: Selection) -> None:
    """Keep some rows of a cache, in place."""
    for layer in cache.layers:
        if isinstance(layer, RoomyLayer):
            layer.close_up(selection)
        else:
            select_rows(layer, selection.rows)


def select_rows(layer: CacheLayerMixin | LinearAttentionCacheLayerMixin, rows: torch.Tensor) -> None:
    """Select rows of a layer's cache, in place, each any number of times."""
    if isinstance(layer, LinearAttentionCacheLayerMixin):
        layer.reorder_cache(rows)  # a selection of any rows, though made for those of a beam search
    else:
        layer.batch_select_indices(rows)


def why_not_select(cache: Cache) -> str | None:
    """Return why rows of a cache cannot be selected; `None` if they can."""
    for layer in cache.layers:
        if not hasattr(layer, "batch_select_indices") and not isinstance(layer, LinearAttentionCacheLayerMixin):
            return f"its cache has layers ({type(layer).__name__}) whose rows cannot be selected one by one."
    return None
