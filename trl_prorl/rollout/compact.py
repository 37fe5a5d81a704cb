"""
Sampling without waste: a prompt is computed once for all its completions, and a completion that has ended is dropped.

Transformers' `generate` computes a prompt once for every completion, and keeps a completion that has ended in the
batch, as padding, until the longest one ends. [`compact_sample`] is a decoding loop for its argument
`custom_generate`: `generate` prepares logits processors, stopping criteria and the cache as it does for its own loop,
so that every setting of a generation means here what it means there. [`draw`] takes one random number for a token,
and [`GrowingLayer`] has room for tokens to come, and rows that can be repeated and dropped.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch.nn.functional import pad
from transformers import LogitsProcessorList
from transformers.cache_utils import Cache, DynamicLayer


BLOCK = 128  # tokens of a block; 64 to 512 cost about the same for a vocabulary of 8,192
SHORT_OF_ALL = 1.0 - 1e-12  # a sum that rounding reaches would lie behind the last token

NO_DISTRIBUTION = "probability tensor contains either `inf`, `nan` or element < 0"  # torch's words


def draw(probabilities: torch.Tensor) -> torch.Tensor:
    """
    Sample a token of each row by inverting its cumulative distribution, first over blocks of tokens and then within
    one.

    `torch.multinomial` draws a random number for every token of the vocabulary: for 16 rows of 8,192 tokens that takes
    40 times as long on a CPU, as long as a third of a small model's forward. Sums are in double precision, so that a
    token's probability is met to the rounding of `probabilities` themselves; a token of probability 0 is never drawn.

    Args:
        probabilities (`torch.Tensor` of shape `(R, V)`): Not negative, with a positive sum in every row, which need
            not be 1.

    Returns:
        `torch.LongTensor` of shape `(R,)`: Token ids.

    Raises:
        `RuntimeError`: As `torch.multinomial`, if a row has no distribution; a place in the table would be read that
            is not there.
    """
    rows, size = probabilities.shape
    blocks = pad(probabilities, (0, -size % BLOCK)).view(rows, -1, BLOCK)
    ends = _running_sums(blocks.sum(dim=-1, dtype=torch.float64))
    total = ends[:, -1:]
    if not ((total > 0.0) & (total < torch.inf)).all():
        raise RuntimeError(NO_DISTRIBUTION)
    wanted = torch.rand(rows, 1, dtype=torch.float64, device=ends.device) * total
    block = _first_beyond(ends, wanted)
    end_of_last = ends.gather(1, (block - 1).clamp(min=0))
    before = torch.where(block > 0, end_of_last, 0.0)
    tokens_of_block = blocks[torch.arange(rows, device=block.device), block[:, 0]]
    within = _running_sums(tokens_of_block.double())
    token = block * BLOCK + _first_beyond(within, wanted - before)
    return token[:, 0]


def _running_sums(values: torch.Tensor) -> torch.Tensor:
    """Sum along each row. Under `full_determinism` torch refuses a GPU's own sums, whose order is not fixed."""
    if values.is_cuda and torch.are_deterministic_algorithms_enabled():
        return values.cpu().cumsum(dim=-1).to(values.device)
    return values.cumsum(dim=-1)


def _first_beyond(ends: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """
    Find the first of ascending sums that is greater than what is wanted, or than all but nothing of the last: `(R,
    1)`.
    """
    largest = ends[:, -1:] * SHORT_OF_ALL
    return torch.searchsorted(ends, wanted.clamp(min=0.0).minimum(largest), right=True)


@contextmanager
def contiguous_states(model) -> Iterator[None]:
    """
    Hand on the states of a CPU's head in bf16 as a contiguous tensor while this lasts.

    `generate` computes logits of the last token alone, and its states are a slice of all. Where the CPU has
    AVX512-BF16, torch 2.13 multiplies each row of such a slice by a copy of the whole head: six rows take eighty times
    as long, and six times its memory.
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


GROWTH = 64  # tokens for which a layer makes room at once


class GrowingLayer(DynamicLayer):
    """
    Is the cache of an attention layer, with room for tokens to come.

    A new token is written into its place, where [`~transformers.DynamicLayer`] copies the whole cache to lengthen it
    by one.

    Args:
        keys (`torch.Tensor` of shape `(R, H, L, D)`): What it holds at first.
        values (`torch.Tensor` of shape `(R, H, L, D)`): The same.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor):
        super().__init__()
        self.dtype = keys.dtype
        self.device = keys.device
        self.is_initialized = True
        self._hold(keys, values)

    def _hold(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Copy what there is into a larger room, of which `keys` and `values` show the part that is filled."""
        length = keys.shape[-2]
        self._room = []
        for old in (keys, values):
            rows, heads, _, size = old.shape
            room = old.new_empty((rows, heads, length + GROWTH, size))
            room[:, :, :length] = old
            self._room.append(room)
        self._show(length)

    def _show(self, length: int) -> None:
        keys, values = self._room
        self.keys = keys[:, :, :length]
        self.values = values[:, :, :length]

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
        """Keep some rows, at most all. One that keeps its place is not copied; room is given back when it grows."""
        count = len(indices)
        length = self.keys.shape[-2]
        moved = (indices != torch.arange(count, device=indices.device)).nonzero().squeeze(1)
        for place, room in enumerate(self._room):
            room[moved, :, :length] = room[indices[moved], :, :length]
            self._room[place] = room[:count]
        self._show(length)


def select_rows(cache: Cache, rows: torch.Tensor) -> None:
    """
    Keep some rows of a cache, in place; a row may be kept several times.

    Args:
        cache ([`~transformers.Cache`]): The cache.
        rows (`torch.LongTensor` of shape `(R,)`): Their indices.
    """
    for place, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and layer.get_seq_length() > 0:
            cache.layers[place] = GrowingLayer(layer.keys[rows], layer.values[rows])
        else:
            layer.batch_select_indices(rows)


def why_not_select(cache: Cache) -> str | None:
    """Say why rows of a cache cannot be selected; `None` if they can."""
    for layer in cache.layers:
        if not hasattr(layer, "batch_select_indices"):
            return f"its cache has layers ({type(layer).__name__}) whose rows cannot be selected."
    return None


class Samples(NamedTuple):
    """
    Holds what `compact_sample` has drawn.

    Attributes:
        ids (`torch.LongTensor` of shape `(R, P + T)`): Prompts and completions, with padding after the end of a
            completion.
        logps (`torch.Tensor` of shape `(R, T)`, *optional*): Log-probabilities of the completions' tokens, before
            top-k and its like; 0 at padding.
    """

    ids: torch.Tensor
    logps: torch.Tensor | None


def compact_sample(
    model,
    input_ids: torch.Tensor,
    logits_processor,
    stopping_criteria,
    generation_config,
    copies: torch.Tensor,
    logps_at: float | None = None,
    **model_kwargs,
) -> Samples:
    """
    Decode for `generate(..., custom_generate=compact_sample, copies=copies)`, greedily or by sampling.

    Args:
        model ([`~transformers.GenerationMixin`]): A decoder of text.
        input_ids (`torch.LongTensor` of shape `(P, W)`): Prompts that differ, padded on the left.
        logits_processor ([`~transformers.LogitsProcessorList`]): As `generate` prepares it. It is given the rows that
            have not ended, with their prompts.
        stopping_criteria ([`~transformers.StoppingCriteriaList`]): The same.
        generation_config ([`~transformers.GenerationConfig`]): As `generate` prepares it.
        copies (`torch.LongTensor` of shape `(R,)`): For every completion the index of its prompt.
        logps_at (`float`, *optional*): Also give log-probabilities, at this temperature. It is not called
            `temperature`, because `generate` would then hand its own argument to this loop and sample at 1.
        model_kwargs: Arguments of the model's forward, as `generate` prepares them.

    Returns:
        [`Samples`]: In the order of `copies`.
    """
    inputs = model.prepare_inputs_for_generation(input_ids, is_first_iteration=True, **model_kwargs)
    outputs = model(**inputs, return_dict=True)
    model_kwargs = model._update_model_kwargs_for_generation(outputs, model_kwargs)
    logits = outputs.logits[:, -1].float()[copies]
    ids, model_kwargs = _select(input_ids, model_kwargs, copies)
    processors = _of_rows(logits_processor, copies)

    pad = generation_config._pad_token_tensor
    logps = None if logps_at is None else logits.new_empty((len(ids), 0))
    rows = torch.arange(len(ids), device=ids.device)
    alive = torch.ones_like(rows, dtype=torch.bool)
    ended: list[tuple[torch.Tensor, Samples]] = []
    while True:
        scores = processors(ids, logits.clone() if logps is not None else logits)
        if generation_config.do_sample:
            tokens = draw(scores.softmax(dim=-1))
        else:
            tokens = scores.argmax(dim=-1)
        if logps is not None:
            all_logps = (logits / logps_at).log_softmax(dim=-1)
            token_logps = all_logps.gather(1, tokens[:, None])
            logps = torch.cat([logps, token_logps.where(alive[:, None], 0.0)], dim=1)
        if pad is not None:
            tokens = torch.where(alive, tokens, pad)
        ids = torch.cat([ids, tokens[:, None]], dim=1)
        alive = alive & ~stopping_criteria(ids, None)
        left = int(alive.sum())
        if left == 0:
            ended.append((rows, Samples(ids, logps)))
            return _join(ended, input_ids.shape[1], 0 if pad is None else pad)
        if left < len(rows):
            over = (~alive).nonzero().squeeze(1)
            kept = _closed_up(alive, left)
            ended_logps = None if logps is None else logps[over]
            ended.append((rows[over], Samples(ids[over], ended_logps)))
            ids, model_kwargs = _select(ids, model_kwargs, kept)
            processors = _of_rows(processors, kept)
            rows = rows[kept]
            alive = alive[kept]
            logps = None if logps is None else logps[kept]
        inputs = model.prepare_inputs_for_generation(ids, next_sequence_length=1, **model_kwargs)
        outputs = model(**inputs, return_dict=True)
        model_kwargs = model._update_model_kwargs_for_generation(outputs, model_kwargs)
        logits = outputs.logits[:, -1].float()


def _closed_up(alive: torch.Tensor, left: int) -> torch.Tensor:
    """
    List the rows that have not ended, so that dropping a row copies one row of the cache.

    The last of them take the places of rows that have ended.
    """
    kept = torch.arange(left, device=alive.device)
    free = (~alive[:left]).nonzero().squeeze(1)
    kept[free] = alive[left:].nonzero().squeeze(1) + left
    return kept


def _select(ids: torch.Tensor, model_kwargs: dict, rows: torch.Tensor) -> tuple[torch.Tensor, dict]:
    """Select some rows of a batch: ids, arguments of the forward and, in place, the cache."""
    select_rows(model_kwargs["past_key_values"], rows)
    selected = {}
    for name, value in model_kwargs.items():
        has_rows = isinstance(value, torch.Tensor) and value.dim() and len(value) == len(ids)
        selected[name] = value[rows] if has_rows else value
    return ids[rows], selected


def _of_rows(processors: LogitsProcessorList, rows: torch.Tensor) -> LogitsProcessorList:
    """
    Make the processors for some rows of the batch: a repetition penalty knows how much padding each row begins with.
    """
    selected = LogitsProcessorList()
    for processor in processors:
        padding = getattr(processor, "prompt_ignore_length", None)
        if isinstance(padding, torch.Tensor):
            processor = copy.copy(processor)
            processor.prompt_ignore_length = padding[rows]
        selected.append(processor)
    return selected


def _join(ended: list[tuple[torch.Tensor, Samples]], width: int, pad) -> Samples:
    """Join the rows that ended at several times, in their first order and padded to the longest."""
    rows = torch.cat([rows for rows, _ in ended])
    longest = max(part.ids.shape[1] for _, part in ended)
    first = ended[0][1]
    ids = first.ids.new_full((len(rows), longest), int(pad))
    logps = None if first.logps is None else first.logps.new_zeros((len(rows), longest - width))
    for of_rows, part in ended:
        ids[of_rows, : part.ids.shape[1]] = part.ids
        if logps is not None:
            logps[of_rows, : part.logps.shape[1]] = part.logps
    return Samples(ids, logps)


def find_distinct(prompts: list[list[int]]) -> tuple[list[list[int]], list[int]]:
    """
    Find the prompts that differ, in the order of their first occurrence, and for every prompt the index of its like.
    """
    places: dict[tuple[int, ...], int] = {}
    copies = [places.setdefault(tuple(prompt), len(places)) for prompt in prompts]
    return [list(prompt) for prompt in places], copies


def pad_left(prompts: list[list[int]], pad: int, multiple: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Make token ids and attention mask of shape `(P, W)`."""
    width = max(map(len, prompts))
    width += -width % (multiple or 1)
    ids = []
    mask = []
    for prompt in prompts:
        missing = width - len(prompt)
        ids.append([pad] * missing + prompt)
        mask.append([0] * missing + [1] * len(prompt))
    return torch.tensor(ids), torch.tensor(mask)


def cut_at_end(ids: list[int], ends: set[int]) -> list[int]:
    """Cut tokens after the first that ends a completion."""
    for place, token in enumerate(ids):
        if token in ends:
            return ids[: place + 1]
    return ids
