"""The forward of every row's next token, as `generate` does it, or with masks that are made once."""

import torch
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from .batch_cache import (
    FULL,
    SLIDING,
    RoomyLayer,
    RoomyState,
    Selection,
    cache_among,
    close_up,
    kept_places,
    places_of,
    states_of,
)
from .families import is_listed
from .prefix import without_cudnn
from .recording import Take
from .rows import Rows


class PlainForward:
    """
    Writes every row's next token, for a model that [`attends_plainly`].

    Attributes:
        masks (`dict[str, PaddingMask]`): The mask of each kind of attention (of transformers' `layer_types`).
        position (`torch.LongTensor` of shape `(R, 1)`): Position of the next token.
        advancing (`list[torch.Tensor]`): Positions and states of all rows at first, which every forward advances.
    """

    def __init__(self, model, model_kwargs: dict, prompts: torch.Tensor, copies: torch.Tensor, rows: Rows, take: Take):
        self._model = model
        self._rows = rows
        self._cache = cache_among(model_kwargs)
        self._attending = [layer for layer in self._cache.layers if isinstance(layer, RoomyLayer)]
        attention_mask = model_kwargs.pop("attention_mask", None)
        if attention_mask is None:
            attention_mask = torch.ones_like(prompts)
        dtype = self._attending[0].values.dtype  # of attention; an fp32 head or autocast gives the logits another
        self.masks: dict[str, PaddingMask] = {}
        self._window: int | None = None
        for layer in self._attending:
            if layer.kind not in self.masks:
                to_add = take(f"mask of {layer.kind}", ("rows", 1, 1, places_of(layer.window)), dtype)
                self.masks[layer.kind] = PaddingMask(attention_mask, copies, to_add, layer.window)
                self._window = layer.window or self._window
        # Where each kind of attention has the last token; in a ring it follows from the other one.
        self._places = {FULL: rows.place, SLIDING: take("place in the ring", (1,), torch.long)}
        self._kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
        position = model_kwargs["position_ids"]
        if position.dim() == 3:  # a text has the same positions on every axis of a picture
            position = model_kwargs["position_ids"] = position[0]
        self.position = take("position", ("rows", 1), torch.long)
        self.position.copy_(position[copies, -1:])
        # All that does not change from token to token.
        self._inputs = model.prepare_inputs_for_generation(prompts, next_sequence_length=1, **model_kwargs)
        self.advancing = [self.position]
        for layer in self._cache.layers:
            if isinstance(layer, RoomyState):
                self.advancing += states_of(layer)

    def __call__(self, length: int) -> None:
        rows = self._rows
        rows.draw_numbers()
        masks = {kind: mask.up_to(length) for kind, mask in self.masks.items()}
        rows.write(self._logits(rows.ids[:, length - 1 : length], masks))

    def begin_recording(self) -> None:
        for mask in self.masks.values():
            mask.hide_later()

    def show_span(self, end: int) -> None:
        """Let recordings read the first `end` places."""
        for layer in self._attending:
            layer.show_span(end, self._places[layer.kind])

    def recorded_logits(self, end: int) -> torch.Tensor:
        """Return the logits `(R, V)` after the last token, computed from tensors alone, with `end` places shown."""
        place = self._rows.place
        if self._window is not None:
            torch.remainder(place, self._window, out=self._places[SLIDING])
        masks = {kind: mask.show(self._places[kind], end) for kind, mask in self.masks.items()}
        return self._logits(self._rows.ids.index_select(1, place), masks)

    def _logits(self, tokens: torch.Tensor, masks: dict[str, torch.Tensor | None]) -> torch.Tensor:
        """Return the logits `(R, V)` after `tokens` `(R, 1)`."""
        if len(masks) == 1:
            mask = next(iter(masks.values()))
        else:
            mask = dict.fromkeys(self._kinds) | masks  # layers with a state have none
        inputs = self._inputs | {"input_ids": tokens, "position_ids": self.position, "attention_mask": mask}
        with without_cudnn(tokens.device):
            logits = self._model(**inputs, return_dict=True).logits[:, -1]
        self.position += 1
        return logits

    def rows_to_keep(self, alive: list[bool]) -> list[bool]:
        return alive

    def close_up(self, selection: Selection, number: int) -> None:
        close_up(self._cache, selection)
        for mask in self.masks.values():
            mask.close_up(selection)
        self.position = selection.close_up(self.position)


class TokenForward:
    """Writes every row's next token as `generate` does."""

    def __init__(self, model, model_kwargs: dict, rows: Rows):
        self._model = model
        self._model_kwargs = model_kwargs
        self._rows = rows

    def __call__(self, length: int) -> None:
        rows = self._rows
        written = rows.ids[:, :length]
        inputs = self._model.prepare_inputs_for_generation(written, next_sequence_length=1, **self._model_kwargs)
        with without_cudnn(written.device):
            outputs = self._model(**inputs, return_dict=True)
        self._model_kwargs = self._model._update_model_kwargs_for_generation(outputs, self._model_kwargs)
        rows.draw_numbers()
        rows.write(outputs.logits[:, -1])

    def rows_to_keep(self, alive: list[bool]) -> list[bool]:
        return alive

    def close_up(self, selection: Selection, number: int) -> None:
        close_up(cache_among(self._model_kwargs), selection)
        self._model_kwargs = select_kwargs(self._model_kwargs, selection.rows, number)


def select_kwargs(model_kwargs: dict, rows: torch.Tensor, number: int) -> dict:
    selected = {}
    for name, value in model_kwargs.items():
        selected[name] = value
        if isinstance(value, torch.Tensor) and value.dim():
            # Positions of several kinds, (K, R, L): of text, and of a picture's axes.
            dim = value.dim() - 2 if name == "position_ids" else 0
            if value.shape[dim] == number:
                selected[name] = value.index_select(dim, rows)
    return selected


class PaddingMask:
    """
    Masks the padding before each prompt, for one query per row. Transformers would make it for every token, with a
    synchronization.

    Made from rows, in any repetition, of `attention_mask` `(P, L)`, in `to_add`: zeros `(R, 1, 1, L)` in the queries'
    dtype (a GPU's kernel supports no other), or `(R, 1, 1, W)` for the ring of a window.
    """

    def __init__(self, attention_mask: torch.Tensor, rows: torch.Tensor, to_add: torch.Tensor, window: int | None):
        width = attention_mask.shape[1]
        kept = width if window is None else min(width, window)
        is_padding = attention_mask[rows, width - kept :] == 0
        self._window = window
        self._has_padding = is_padding.any(dim=1).tolist()
        self._places = kept_places(width, kept, window, to_add.device)  # of the prompts
        self._to_add = to_add
        self._to_add[:, 0, 0, self._places] = to_add.new_zeros(is_padding.shape).masked_fill_(is_padding, -torch.inf)

    def up_to(self, length: int) -> torch.Tensor | None:
        """Show the last of `length` tokens; return the additive mask `(R, 1, 1, L)`, `None` if it hides nothing."""
        if self._window is not None:
            self._to_add[..., (length - 1) % self._window] = 0.0
        elif not any(self._has_padding):
            return None
        return self._to_add[..., :length]

    def hide_later(self) -> None:
        """Hide all places besides the prompts'."""
        of_prompts = self._to_add[..., self._places]
        self._to_add.fill_(-torch.inf)
        self._to_add[..., self._places] = of_prompts

    def show(self, place: torch.Tensor, end: int) -> torch.Tensor:
        """Show the token at `place` `(1,)`; return the additive mask of `end` places."""
        return self._to_add[..., :end].index_fill_(3, place, 0.0)

    def close_up(self, selection: Selection) -> None:
        self._to_add = selection.close_up(self._to_add)
        self._has_padding = [self._has_padding[row] for row in selection.kept]


# Layers of a cache for which [`PlainForward`] makes the masks, with their kinds in transformers' `layer_types`.
PLAIN_LAYERS = {
    "DynamicLayer": (FULL,),
    "DynamicSlidingWindowLayer": (SLIDING,),
    "DummyLayer": (FULL, SLIDING),  # of a layer that reads the keys of an earlier one, since transformers 5.24
    "LinearAttentionLayer": ("linear_attention", "conv"),
}


def attends_plainly(model, model_kwargs: dict) -> bool:
    """
    Return whether every layer attends to all earlier tokens or those of a window, by SDPA's additive masks, or has a
    state, and only positions change.
    """
    config = model.config.get_text_config()
    layers = cache_among(model_kwargs).layers
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        kinds = [SLIDING if getattr(config, "sliding_window", None) else FULL] * len(layers)
    windows = {layer.sliding_window for layer in layers if isinstance(layer, DynamicSlidingWindowLayer)}
    # strict=False: before transformers 5.24, layers that read the keys of earlier ones have no place in a cache
    are_plain = [kind in PLAIN_LAYERS.get(type(one).__name__, ()) for kind, one in zip(kinds, layers, strict=False)]
    tensors = {name for name, value in model_kwargs.items() if isinstance(value, torch.Tensor)}
    return (
        type(model).__module__.startswith("transformers.")
        and (config is model.config or is_listed(model))
        and config._attn_implementation == "sdpa"
        and getattr(config, "rope_parameters", None) is not None
        and all(are_plain)
        and any(isinstance(layer, DynamicLayer) for layer in layers)
        and len(windows) <= 1
        and tensors - {"attention_mask"} == {"position_ids"}
    )
