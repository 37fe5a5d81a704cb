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
from transformers import LogitsProcessorList, TemperatureLogitsWarper
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, LinearAttentionCacheLayerMixin

from .prefix import ALIGNMENT, without_cudnn
from .recording import RecordedForward


CHECK_EVERY = 16  # tokens between two checks, each of which synchronizes with the device

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
    replays: bool = False,
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
        replays (`bool`): Whether the token forward may be recorded.

    Returns [`Samples`] in the order of `copies`.
    """
    longest = stopping_criteria.max_length
    width = input_ids.shape[1]
    pad_token = generation_config._pad_token_tensor
    number = len(copies)
    ids = input_ids.new_full((number, longest), 0 if pad_token is None else int(pad_token))
    ids[:, :width] = input_ids[copies]
    logps = None if logps_at is None else ids.new_zeros((number, longest - width), dtype=torch.float32)
    lengths = torch.full_like(copies, width)
    logits, forward = _read_prompts(model, input_ids, copies, longest, model_kwargs)
    recorded = replays and forward.can_be_recorded
    if recorded:
        forward = forward.recorded(longest)
    processors = _of_rows(logits_processor, copies)

    # For each row: its index, its tokens, whether it is unfinished, and whether all its distributions were valid.
    rows = torch.arange(number, device=ids.device)
    written = ids[:, :width]
    alive = torch.ones_like(rows, dtype=torch.bool)
    sound = torch.ones_like(alive)
    check_every = tokens_between_checks(ids.device)
    for length in range(width + 1, longest + 1):
        tokens, token_logps, has_distribution = _next_tokens(
            written, logits, processors, generation_config.do_sample, logps_at
        )
        sound = sound & (has_distribution | ~alive)
        if pad_token is not None:
            tokens = torch.where(alive, tokens, pad_token)
        ids[rows, length - 1] = tokens
        if logps is not None:
            logps[rows, length - 1 - width] = token_logps.where(alive, 0.0)
        lengths[rows] += alive
        written = torch.cat([written, tokens[:, None]], dim=1)
        alive = alive & ~stopping_criteria(written, None)
        if (length - width) % check_every == 0 or length == longest:
            # the only synchronization with the device in this loop
            still, all_sound = torch.stack([alive, sound]).tolist()
            if not all(all_sound):
                raise RuntimeError(NO_DISTRIBUTION)
            if not any(still):
                break
            if sum(still) < forward.kept_share * len(still):
                selection = Selection.from_rows(still, ids.device)
                forward.close_up(selection, len(still))
                kept = selection.rows
                processors = _of_rows(processors, kept)
                rows, written, alive, sound = rows[kept], written[kept], alive[kept], sound[kept]
        logits = forward(written, length)
    longest = int(lengths.max())
    return Samples(ids[:, :longest], None if logps is None else logps[:, : longest - width], recorded)


def _read_prompts(
    model, input_ids: torch.Tensor, copies: torch.Tensor, longest: int, model_kwargs: dict
) -> tuple[torch.Tensor, "TokenForward"]:
    """Compute every prompt once, and return the first token's logits `(R, V)`."""
    inputs = model.prepare_inputs_for_generation(input_ids, is_first_iteration=True, **model_kwargs)
    with without_cudnn(input_ids.device):
        outputs = model(**inputs, return_dict=True)
    model_kwargs = model._update_model_kwargs_for_generation(outputs, model_kwargs)
    repeat_rows(cache_among(model_kwargs), copies, longest)
    mask = None
    if attends_plainly(model, model_kwargs):
        attention_mask = model_kwargs.pop("attention_mask", None)
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        # The dtype of attention; an fp32 head or autocast gives the logits another.
        dtype = cache_among(model_kwargs).layers[0].values.dtype
        mask = PaddingMask(attention_mask, copies, longest, dtype)
    model_kwargs = _select(model_kwargs, copies, len(input_ids))
    return outputs.logits[:, -1][copies], TokenForward(model, mask, model_kwargs)


class TokenForward:
    """
    Computes every row's next logits, with `mask` if the model needs no other. Finished rows are dropped when less than
    `kept_share` of the rows is unfinished.
    """

    kept_share = 1.0

    def __init__(self, model, mask: "PaddingMask | None", model_kwargs: dict):
        self._model = model
        self._mask = mask
        self._model_kwargs = model_kwargs

    def __call__(self, written: torch.Tensor, length: int) -> torch.Tensor:
        """Return the logits `(R, V)` of the token after `written` `(R, length)`."""
        inputs = self._model.prepare_inputs_for_generation(written, next_sequence_length=1, **self._model_kwargs)
        if self._mask is not None:
            inputs["attention_mask"] = self._mask.up_to(length)
        with without_cudnn(written.device):
            outputs = self._model(**inputs, return_dict=True)
        self._model_kwargs = self._model._update_model_kwargs_for_generation(outputs, self._model_kwargs)
        return outputs.logits[:, -1]

    def close_up(self, selection: "Selection", number: int) -> None:
        close_up(cache_among(self._model_kwargs), selection)
        if self._mask is not None:
            self._mask.close_up(selection)
        self._model_kwargs = _select(self._model_kwargs, selection.rows, number)

    @property
    def can_be_recorded(self) -> bool:
        """Whether a [`RecordedForward`] supports all its inputs."""
        tensors = {name for name, value in self._model_kwargs.items() if isinstance(value, torch.Tensor)}
        return self._mask is not None and tensors == {"position_ids"}

    def recorded(self, longest: int) -> RecordedForward:
        cache = cache_among(self._model_kwargs)
        return RecordedForward(self._model, cache, self._mask, self._model_kwargs, longest)


def tokens_between_checks(device: torch.device) -> int:
    """
    Return the tokens between two checks for finished rows: an asynchronous device computes a few tokens faster than it
    checks.
    """
    return 1 if device.type == "cpu" else CHECK_EVERY


def _next_tokens(
    ids: torch.Tensor, logits: torch.Tensor, processors: LogitsProcessorList, samples: bool, logps_at: float | None
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | bool]:
    """
    Return token ids, log-probabilities at `logps_at`, and whether a row has a distribution, each `(R,)`, from logits
    `(R, V)`.
    """
    temperature = _temperature_alone(processors)
    if temperature is None:
        # A processor may write into its argument.
        scores = processors(ids, logits.to(torch.float32, copy=logps_at is not None))
    else:
        scores = _scaled(logits, temperature)
    has_distribution = True
    if samples:
        probabilities = scores.softmax(dim=-1)
        tokens, has_distribution = draw(probabilities)
    else:
        tokens = scores.argmax(dim=-1)
    if logps_at is None:
        return tokens, None, has_distribution
    if samples and temperature == logps_at:  # a drawn token has a positive probability
        logps = probabilities.gather(1, tokens[:, None]).log()
    else:
        logps = _scaled(logits, logps_at).log_softmax(dim=-1).gather(1, tokens[:, None])
    return tokens, logps[:, 0], has_distribution


def _temperature_alone(processors: LogitsProcessorList) -> float | None:
    if not processors:
        return 1.0
    if len(processors) == 1 and type(processors[0]) is TemperatureLogitsWarper:
        return processors[0].temperature
    return None


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


class RoomyLayer(DynamicLayer):
    """
    Attention cache with room for `length` tokens, allocated once: growing blocks would fragment a GPU's memory. Starts
    with rows of keys and values `(P, H, L, D)`, in any repetition.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, rows: torch.Tensor, length: int):
        super().__init__()
        self.dtype = keys.dtype
        self.device = keys.device
        self.is_initialized = True
        self._room = []
        for old in (keys, values):
            _, heads, filled, size = old.shape
            room = old.new_zeros((len(rows), heads, max(length, filled), size))  # zeros: no NaN under a mask
            room[:, :, :filled] = old[rows]
            self._room.append(room)
        self._place: torch.Tensor | None = None
        self._show(filled)

    def show_span(self, end: int, place: torch.Tensor) -> None:
        """Show the first `end` places of every row, and write the next token into `place` `(1,)`."""
        self._place = place
        self._show(end)

    def _show(self, length: int) -> None:
        keys, values = self._room
        self.keys = keys[:, :, :length]
        self.values = values[:, :, :length]

    def update(self, key_states, value_states, *args, **kwargs):
        if self._place is not None:
            for shown, new in zip((self.keys, self.values), (key_states, value_states), strict=True):
                shown.index_copy_(2, self._place, new.to(shown.dtype))  # rotation makes keys fp32 under autocast
            return self.keys, self.values
        length = self.keys.shape[-2]
        end = length + key_states.shape[-2]
        for room, new in zip(self._room, (key_states, value_states), strict=True):
            room[:, :, length:end] = new
        self._show(end)
        return self.keys, self.values

    def close_up(self, selection: "Selection") -> None:
        """Keep some rows; only rows that move are copied."""
        length = self.keys.shape[-2]
        for place, room in enumerate(self._room):
            room[selection.places, :, :length] = room[selection.movers, :, :length]
            self._room[place] = room[: len(selection.rows)]
        self._show(length)


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


def cache_among(values: Mapping[str, Any]) -> Cache:
    """Return a forward's cache, which transformers 5.24 renamed."""
    name = "cache" if "cache" in values else "past_key_values"
    return values[name]


def repeat_rows(cache: Cache, rows: torch.Tensor, length: int) -> None:
    """Select rows of a cache, in place, with room for `length` tokens."""
    for place, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and layer.get_seq_length() > 0:
            cache.layers[place] = RoomyLayer(layer.keys, layer.values, rows, length)
        else:
            select_rows(layer, rows)


def close_up(cache: Cache, selection: Selection) -> None:
    for layer in cache.layers:
        if isinstance(layer, RoomyLayer):
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

    Made from rows, in any repetition, of `attention_mask` `(P, L)`, for `length` tokens, in the queries' dtype (a
    GPU's kernel supports no other).
    """

    def __init__(self, attention_mask: torch.Tensor, rows: torch.Tensor, length: int, dtype: torch.dtype):
        is_padding = attention_mask[rows] == 0
        self._has_padding = is_padding.any(dim=1).tolist()
        width = length + -length % ALIGNMENT  # other strides are copied by a GPU's kernel in every layer
        self._to_add = torch.zeros((len(rows), 1, 1, width), dtype=dtype, device=attention_mask.device)
        self._to_add[:, 0, 0, : is_padding.shape[1]].masked_fill_(is_padding, -torch.inf)

    def up_to(self, length: int) -> torch.Tensor | None:
        """Return the additive mask of `length` tokens, `(R, 1, 1, L)`; `None` without padding."""
        return self._to_add[..., :length] if any(self._has_padding) else None

    def hide_from(self, place: int, end: int) -> torch.Tensor:
        """Hide the places from `place` on; return the additive mask of `end` places."""
        self._to_add[..., place:] = -torch.inf
        return self._to_add[..., :end]

    def close_up(self, selection: Selection) -> None:
        self._to_add = self._to_add[selection.rows]
        self._has_padding = [self._has_padding[row] for row in selection.kept]


def attends_plainly(model, model_kwargs: dict) -> bool:
    """Return whether every layer attends to all earlier tokens, by SDPA's additive masks."""
    config = model.config
    cache = cache_among(model_kwargs)
    return (
        type(model).__module__.startswith("transformers.")
        and config.get_text_config() is config
        and config._attn_implementation == "sdpa"
        and getattr(config, "rope_parameters", None) is not None
        and set(getattr(config, "layer_types", None) or ()) <= {"full_attention"}
        and not getattr(config, "sliding_window", None)
        and all(type(layer) in (RoomyLayer, DynamicLayer) for layer in cache.layers)  # the latter is empty
        and model_kwargs.get("position_ids") is not None
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


def draw(probabilities: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Sample a token per row by inverting its cumulative distribution, first over blocks of tokens and then within one.

    (`torch.multinomial` draws a random number per token of the vocabulary: 40 times as long on a CPU for 16 rows of
    8,192.) Sums in double precision are exact up to the rounding of `probabilities` `(R, V)`, which need not sum to 1;
    a token of probability 0 is never drawn. Returns token ids `(R,)`, and whether a row has a distribution `(R,)`; if
    not, the caller must raise an error (a check here would synchronize).
    """
    rows, size = probabilities.shape
    missing = -size % BLOCK
    whole = pad(probabilities, (0, missing)) if missing else probabilities  # padding by nothing would copy, too
    blocks = whole.view(rows, -1, BLOCK)
    ends = _running_sums(blocks.sum(dim=-1, dtype=torch.float64))
    total = ends[:, -1:]
    has_distribution = (total > 0.0) & (total < torch.inf)
    wanted = torch.rand(rows, 1, dtype=torch.float64, device=ends.device) * total
    block = _first_beyond(ends, wanted)
    end_of_last = ends.gather(1, (block - 1).clamp(min=0))
    before = torch.where(block > 0, end_of_last, 0.0)
    tokens_of_block = blocks[torch.arange(rows, device=block.device), block[:, 0]]
    within = _running_sums(tokens_of_block.double())
    token = block * BLOCK + _first_beyond(within, wanted - before)
    return token[:, 0].clamp(max=size - 1), has_distribution[:, 0]


def _running_sums(values: torch.Tensor) -> torch.Tensor:
    """Sum along each row, on the CPU under `full_determinism`: torch rejects a GPU's cumulative sums."""
    if values.is_cuda and torch.are_deterministic_algorithms_enabled():
        return values.cpu().cumsum(dim=-1).to(values.device)
    return values.cumsum(dim=-1)


def _first_beyond(ends: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the index `(R, 1)` of the first sum greater than the wanted value, or than nearly all of the last sum."""
    largest = ends[:, -1:] * SHORT_OF_ALL
    found = torch.searchsorted(ends, wanted.clamp(min=0.0).minimum(largest), right=True)
    return found.clamp(max=ends.shape[1] - 1)
