"""A cache of keys and values that has room for tokens to come, and rows that can be repeated and dropped."""

import torch
from transformers.cache_utils import Cache, DynamicLayer


GROWTH = 64  # tokens for which a layer makes room at once


class GrowingLayer(DynamicLayer):
    """
    The cache of an attention layer. A new token is written into its place, where [`~transformers.DynamicLayer`] copies
    the whole cache to lengthen it by one.

    Args:
        keys (`torch.Tensor` of shape `(R, H, L, D)`), values (`torch.Tensor` of shape `(R, H, L, D)`):
            What it holds at first.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor):
        super().__init__()
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self._hold(keys, values)

    def _hold(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Copy what there is into a larger room, of which `keys` and `values` show the part that is filled."""
        length = keys.shape[-2]
        self._room = [old.new_empty((*old.shape[:2], length + GROWTH, old.shape[3])) for old in (keys, values)]
        for room, old in zip(self._room, (keys, values), strict=True):
            room[:, :, :length] = old
        self._show(length)

    def _show(self, length: int) -> None:
        self.keys, self.values = (room[:, :, :length] for room in self._room)

    def update(self, key_states, value_states, *args, **kwargs):
        length = self.keys.shape[-2]
        end = length + key_states.shape[-2]
        if end > self._room[0].shape[-2]:
            self._hold(self.keys, self.values)
        for room, new in zip(self._room, (key_states, value_states), strict=True):
            room[:, :, length:end] = new
        self._show(end)
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep some rows. A row that keeps its place is not copied; room is given back at the next growth."""
        count, length = len(indices), self.keys.shape[-2]
        if count > len(self.keys):
            self._hold(self.keys[indices], self.values[indices])
            return
        moved = (indices != torch.arange(count, device=indices.device)).nonzero().squeeze(1)
        for place, room in enumerate(self._room):
            room[moved, :, :length] = room[indices[moved], :, :length]
            self._room[place] = room[:count]
        self._show(length)


def select_rows(cache: Cache, rows: torch.Tensor) -> None:
    """
    Keep some rows of a cache, in place; a row may be kept several times.

    Args:
        cache ([`~transformers.Cache`]): Of layers that can select rows.
        rows (`torch.LongTensor` of shape `(R,)`): Their indices.
    """
    for place, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and layer.get_seq_length() > 0:
            cache.layers[place] = GrowingLayer(layer.keys[rows], layer.values[rows])
        else:
            layer.batch_select_indices(rows)


def why_not_select(cache: Cache) -> str | None:
    """Why rows of a cache cannot be selected, or `None` if they can."""
    layer = next((layer for layer in cache.layers if not hasattr(layer, "batch_select_indices")), None)
    return None if layer is None else f"its cache has layers ({type(layer).__name__}) whose rows cannot be selected."
