"""
Compact sampling: a prompt is computed once for all its completions, and finished completions are dropped.

[`compact_sample`] is a decoding loop for the argument `custom_generate` of transformers' `generate`, so every
generation setting keeps its meaning.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad
from transformers import EosTokenCriteria, LogitsProcessorList, MaxLengthCriteria, TemperatureLogitsWarper
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
)

from .families import is_listed
from .prefix import ALIGNMENT, without_cudnn
from .recording import AtMost, RecordedSteps, Recordings, Take, number_of


CHECK_EVERY = 16  # tokens between two checks, each of which synchronizes with the device

FULL, SLIDING = "full_attention", "sliding_attention"  # kinds of transformers' `layer_types`

NO_DISTRIBUTION = "probability tensor contains either `inf`, `nan` or element < 0"  # torch's message


class Samples(NamedTuple):
    """
    Prompts and completions `ids` `(R, P + T)`, padded on the right; log-probabilities `logps` `(R, T)` before top-k
    and the like, 0 at padding; and whether the token forward was recorded.
    """

    ids: torch.Tensor
    logps: torch.Tensor | None
    recorded: bool


def compact_sample(
    model,
    input_ids: torch.Tensor,
    logits_processor,
    stopping_criteria,
    generation_config,
    copies: torch.Tensor,
    logps_at: float | None = None,
    recordings: Recordings | None = None,
    **model_kwargs,
) -> Samples:
    """
    Decode for `generate(..., custom_generate=compact_sample, copies=copies)`.

    Args:
        input_ids (`torch.LongTensor` of shape `(P, W)`): Distinct prompts, padded on the left.
        logits_processor, stopping_criteria: They get unfinished rows with prompts.
        copies (`torch.LongTensor` of shape `(R,)`): Index of each completion's prompt.
        logps_at (`float`, *optional*): Also return log-probabilities at this temperature. (An argument `temperature`
            would be `generate`'s own.)
        recordings ([`Recordings`], *optional*): Records the step of a token and replays it, if the model allows that.

    Returns [`Samples`] in the order of `copies`.
    """
    longest = stopping_criteria.max_length
    width = input_ids.shape[1]
    number = len(copies)
    choice = TokenChoice(logits_processor, stopping_criteria, generation_config, logps_at, input_ids.device)
    logits, model_kwargs = _read_prompts(model, input_ids, model_kwargs)
    is_plain = attends_plainly(model, model_kwargs)
    recorded = recordings is not None and is_plain
    if recorded:
        copies = recordings.begin(model, choice.settings, copies, longest)
    take = recordings.take if recorded else Room(len(copies), longest, input_ids.device).take

    logits = logits[copies]
    rows = Rows(take, input_ids[copies], number, choice.of_rows(copies))
    repeat_rows(cache_among(model_kwargs), copies, take, is_plain)
    if is_plain:
        step = PlainForward(model, model_kwargs, input_ids, copies, rows, take)
        if recorded:
            step = RecordedSteps(recordings, step, rows, logits)
    else:
        step = TokenForward(model, _select(model_kwargs, copies, len(input_ids)), rows)

    pad_token = 0 if choice.pad_token is None else choice.pad_token
    ids = input_ids.new_full((len(copies), longest), pad_token)
    logps = None if logps_at is None else torch.zeros_like(ids, dtype=torch.float32)
    rows.write(logits)
    del logits  # as large as those of later tokens
    check_every = tokens_between_checks(ids.device)
    finished = width
    for length in range(width + 1, longest + 1):
        rows.length = length
        if (length - width) % check_every == 0 or length == longest:
            # the only synchronization with the device in this loop
            still, all_sound, lengths = torch.stack([rows.alive, rows.sound, rows.lengths]).tolist()
            if not all(all_sound):
                raise RuntimeError(NO_DISTRIBUTION)
            finished = max(finished, *lengths)
            kept = step.rows_to_keep(still)
            ends = length == longest or not any(still)
            if ends or not all(kept):
                rows.copy_to(ids, logps)
            if ends:
                break
            if not all(kept):
                selection = Selection.from_rows(kept, ids.device)
                step.close_up(selection, len(kept))
                rows.close_up(selection)
        step(length)
    return Samples(ids[:number, :finished], None if logps is None else logps[:number, width:finished], recorded)


def _read_prompts(model, input_ids: torch.Tensor, model_kwargs: dict) -> tuple[torch.Tensor, dict]:
    """Compute every prompt once. Returns the first token's logits `(P, V)`, and `model_kwargs` for later tokens."""
    inputs = model.prepare_inputs_for_generation(input_ids, is_first_iteration=True, **model_kwargs)
    with without_cudnn(input_ids.device):
        outputs = model(**inputs, return_dict=True)
    return outputs.logits[:, -1], model._update_model_kwargs_for_generation(outputs, model_kwargs)


class Room:
    """Memory for the `rows` of one batch, of up to `length` tokens."""

    def __init__(self, rows: int, length: int, device: torch.device):
        # a GPU's kernel copies a mask with other strides in every layer
        self._sizes = {"rows": rows, "length": length + -length % ALIGNMENT}
        self._device = device

    def take(self, name: str, sizes: tuple[int | str | AtMost, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return zeros; a size may be `"rows"` or `"length"`."""
        return torch.zeros([number_of(size, self._sizes) for size in sizes], dtype=dtype, device=self._device)


class TokenChoice:
    """
    How tokens are chosen from logits, and when a row ends.

    Attributes:
        is_plain (`bool`): Whether it needs only logits, a temperature and `ends`.
        settings (`tuple`): The numbers in a recording of it.
        pad_token (`int`, *optional*): The token after the end of a row.
        ends (`torch.LongTensor`, *optional*): The tokens that end a row, if only these and the length do.
    """

    def __init__(
        self, processors: LogitsProcessorList, criteria, config, logps_at: float | None, device: torch.device
    ):
        self.processors = processors
        self.samples = config.do_sample
        self.logps_at = logps_at
        self.temperature = _temperature_alone(processors)
        pad_token = config._pad_token_tensor
        self.pad_token = None if pad_token is None else int(pad_token)
        self._criteria = criteria
        ends = _end_tokens(criteria)
        self.ends = None if ends is None else torch.tensor(ends, dtype=torch.long, device=device)
        # Without deterministic algorithms for cumulative sums a draw waits for the device.
        on_device = not torch.are_deterministic_algorithms_enabled()
        self.is_plain = self.temperature is not None and ends is not None and on_device
        self.settings = (self.is_plain, self.samples, logps_at, self.temperature, self.pad_token, ends and tuple(ends))

    def of_rows(self, rows: torch.Tensor) -> "TokenChoice":
        selected = copy.copy(self)
        selected.processors = _of_rows(self.processors, rows)
        return selected

    def tokens(
        self, written: torch.Tensor, logits: torch.Tensor, numbers: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """
        Return token ids, log-probabilities at `logps_at`, and for a draw whether a row has a distribution, each
        `(R,)`, from logits `(R, V)`.
        """
        if self.temperature is None:
            # A processor may write into its argument.
            scores = self.processors(written, logits.to(torch.float32, copy=self.logps_at is not None))
        else:
            scores = _scaled(logits, self.temperature)
        has_distribution = None
        if self.samples:
            probabilities = scores.softmax(dim=-1)
            tokens, has_distribution = draw(probabilities, numbers)
        else:
            tokens = scores.argmax(dim=-1)
        if self.logps_at is None:
            return tokens, None, has_distribution
        if self.samples and self.temperature == self.logps_at:  # a drawn token has a positive probability
            logps = probabilities.gather(1, tokens[:, None]).log()
        else:
            logps = _scaled(logits, self.logps_at).log_softmax(dim=-1).gather(1, tokens[:, None])
        return tokens, logps[:, 0], has_distribution

    def goes_on(self, tokens: torch.Tensor, written: torch.Tensor) -> torch.Tensor | None:
        """Return whether rows go on after their last token `(R,)`; `None` if all do."""
        if self.ends is None:
            return ~self._criteria(written, None)
        if len(self.ends) == 0:
            return None
        if len(self.ends) == 1:
            return tokens != self.ends
        return (tokens[:, None] != self.ends).all(dim=1)


def _temperature_alone(processors: LogitsProcessorList) -> float | None:
    if not processors:
        return 1.0
    if len(processors) == 1 and type(processors[0]) is TemperatureLogitsWarper:
        return processors[0].temperature
    return None


def _end_tokens(criteria) -> list[int] | None:
    ends = []
    for criterion in criteria:
        if type(criterion) is EosTokenCriteria:
            ends += criterion.eos_token_id.tolist()
        elif type(criterion) is not MaxLengthCriteria:
            return None
    return ends


class Rows:
    """
    The decoded rows, in an order that changes; the first `number` are wanted.

    Attributes:
        ids, logps (`torch.Tensor` of shape `(R, L)`): Tokens and their log-probabilities.
        length (`int`): Tokens written.
        place (`torch.LongTensor` of shape `(1,)`): Place of the last token.
        alive, sound (`torch.BoolTensor` of shape `(R,)`): Whether a row is unfinished, and whether all its
            distributions were valid.
        lengths (`torch.LongTensor` of shape `(R,)`): Tokens of a row.
        numbers (`torch.Tensor` of shape `(R, 1)`): Random numbers from 0 to 1 for the next tokens.
    """

    def __init__(self, take: Take, prompts: torch.Tensor, number: int, choice: TokenChoice):
        width = prompts.shape[1]
        self.choice = choice
        if choice.ends is not None:
            choice.ends = take("ends", choice.ends.shape, torch.long).copy_(choice.ends)
        self.ids = take("ids", ("rows", "length"), torch.long)
        self.ids[:, :width] = prompts
        self.logps = None
        if choice.logps_at is not None:
            self.logps = take("logps", ("rows", "length"), torch.float32)
        self.place = take("place", (1,), torch.long).fill_(width - 1)
        self.alive = take("alive", ("rows",), torch.bool)
        self.alive[:number] = True
        self.sound = take("sound", ("rows",), torch.bool).fill_(True)
        self.lengths = take("lengths", ("rows",), torch.long).fill_(width)
        self.numbers = take("numbers", ("rows", 1), torch.float64)
        self.length = width
        self.index = list(range(len(prompts)))  # of each row among the rows at first
        self.draw_numbers()

    def draw_numbers(self) -> None:
        if self.choice.samples:
            self.numbers.uniform_()

    def write(self, logits: torch.Tensor) -> None:
        written = self.ids[:, : self.length]
        tokens, logps, has_distribution = self.choice.tokens(written, logits, self.numbers)
        done = ~self.alive
        if has_distribution is not None:
            self.sound &= has_distribution | done
        if self.choice.pad_token is not None:
            tokens.masked_fill_(done, self.choice.pad_token)
        self.place += 1
        self.ids.index_copy_(1, self.place, tokens[:, None])
        if logps is not None:
            self.logps.index_copy_(1, self.place, logps.masked_fill_(done, 0.0)[:, None])
        self.lengths += self.alive
        goes_on = self.choice.goes_on(tokens, self.ids[:, : self.length + 1])
        if goes_on is not None:
            self.alive &= goes_on

    def copy_to(self, ids: torch.Tensor, logps: torch.Tensor | None) -> None:
        """Copy the written tokens in the first order."""
        index = torch.tensor(self.index, device=ids.device)
        ids[index, : self.length] = self.ids[:, : self.length]
        if logps is not None:
            logps[index, : self.length] = self.logps[:, : self.length]

    def close_up(self, selection: "Selection") -> None:
        self.choice = self.choice.of_rows(selection.rows)
        self.index = [self.index[row] for row in selection.kept]
        for name in ("ids", "logps", "alive", "sound", "lengths", "numbers"):
            tensor = getattr(self, name)
            if tensor is not None:
                setattr(self, name, selection.close_up(tensor))


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

    def close_up(self, selection: "Selection", number: int) -> None:
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

    def close_up(self, selection: "Selection", number: int) -> None:
        close_up(cache_among(self._model_kwargs), selection)
        self._model_kwargs = _select(self._model_kwargs, selection.rows, number)


def tokens_between_checks(device: torch.device) -> int:
    """
    Return the tokens between two checks for finished rows: an asynchronous device computes a few tokens faster than it
    checks.
    """
    return 1 if device.type == "cpu" else CHECK_EVERY


def _scaled(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Divide logits by a temperature, in fp32; an fp32 divisor needs only one pass."""
    if temperature == 1.0:
        return logits.float()
    return logits / logits.new_full((1,), temperature, dtype=torch.float32)


def _select(model_kwargs: dict, rows: torch.Tensor, number: int) -> dict:
    selected = {}
    for name, value in model_kwargs.items():
        selected[name] = value
        if isinstance(value, torch.Tensor) and value.dim():
            # Positions of several kinds, (K, R, L): of text, and of a picture's axes.
            dim = value.dim() - 2 if name == "position_ids" else 0
            if value.shape[dim] == number:
                selected[name] = value.index_select(dim, rows)
    return selected


def _of_rows(processors: LogitsProcessorList, rows: torch.Tensor) -> LogitsProcessorList:
    """A repetition penalty stores each row's padding."""
    selected = LogitsProcessorList()
    for processor in processors:
        padding = getattr(processor, "prompt_ignore_length", None)
        if isinstance(padding, torch.Tensor):
            processor = copy.copy(processor)
            processor.prompt_ignore_length = padding[rows]
        selected.append(processor)
    return selected


# ------------------------------------------------------------------------------------------ rows of the cache


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


# ---------------------------------------------------------------------------------------- the mask and the head


class PaddingMask:
    """
    Masks the padding before each prompt, for one query per row. Transformers would make it for every token, with a
    synchronization.

    Made from rows, in any repetition, of `attention_mask` `(P, L)`, in `to_add`: zeros `(R, 1, 1, L)` in the queries'
    dtype (a GPU's kernel supports no other), or `(R, 1, 1, W)` for the ring of a window.
    """

    def __init__(
        self, attention_mask: torch.Tensor, rows: torch.Tensor, to_add: torch.Tensor, window: int | None = None
    ):
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


@contextmanager
def contiguous_states(model) -> Iterator[None]:
    """
    Make the states for a CPU's bf16 head contiguous: with AVX512-BF16, torch 2.13 multiplies each row of `generate`'s
    slice by a copy of the head, for six rows eighty times as long.
    """
    head = model.get_output_embeddings()
    weight = getattr(head, "weight", None)
    if weight is None or weight.device.type != "cpu" or weight.dtype != torch.bfloat16:
        yield
        return
    handle = head.register_forward_pre_hook(lambda module, args: (args[0].contiguous(), *args[1:]))
    try:
        yield
    finally:
        handle.remove()


# ------------------------------------------------------------------------------------------ drawing a token

BLOCK = 128  # tokens per block; 64 to 512 cost about the same for a vocabulary of 8,192
SHORT_OF_ALL = 1.0 - 1e-12  # keeps a rounded sum before the end of the last token


def draw(probabilities: torch.Tensor, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Sample a token per row by inverting its cumulative distribution, first over blocks of tokens and then within one.

    (`torch.multinomial` draws a random number per token of the vocabulary: 40 times as long on a CPU for 16 rows of
    8,192.) Sums in double precision are exact up to the rounding of `probabilities` `(R, V)`, which need not sum to 1;
    a token of probability 0 is never drawn. `numbers` `(R, 1)` are uniform between 0 and 1, in double precision.
    Returns token ids `(R,)`, and whether a row has a distribution `(R,)`; if not, the caller must raise an error (a
    check here would synchronize).
    """
    rows, size = probabilities.shape
    missing = -size % BLOCK
    whole = pad(probabilities, (0, missing)) if missing else probabilities  # padding by nothing would copy, too
    blocks = whole.view(rows, -1, BLOCK)
    ends = _running_sums(blocks.sum(dim=-1, dtype=torch.float64))
    total = ends[:, -1:]
    has_distribution = (total > 0.0) & (total < torch.inf)
    wanted = numbers.clamp(max=SHORT_OF_ALL) * total
    block = torch.searchsorted(ends, wanted, right=True).clamp_(max=ends.shape[1] - 1)  # beyond: no distribution
    before = pad(ends, (1, 0)).gather(1, block)
    within = _running_sums(blocks.gather(1, block[:, :, None].expand(-1, -1, BLOCK))[:, 0].double())
    wanted = (wanted - before).minimum(within[:, -1:] * SHORT_OF_ALL)
    token = torch.add(torch.searchsorted(within, wanted, right=True), block, alpha=BLOCK)
    return token[:, 0].clamp_(max=size - 1), has_distribution[:, 0]


def _running_sums(values: torch.Tensor) -> torch.Tensor:
    """Sum along each row, on the CPU under `full_determinism`: torch rejects a GPU's cumulative sums."""
    if values.is_cuda and torch.are_deterministic_algorithms_enabled():
        return values.cpu().cumsum(dim=-1).to(values.device)
    return values.cumsum(dim=-1)
