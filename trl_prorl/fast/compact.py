"""
Sampling without waste: a prompt is computed once for all its completions, and a completion that has ended is dropped.

Transformers' `generate` computes a prompt once for every completion, and keeps a completion that has ended in the
batch, as padding, until the longest one ends. [`compact_sample`] is a decoding loop for its argument
`custom_generate`: `generate` prepares logits processors, stopping criteria and the cache as it does for its own loop,
so that every setting of a generation means here what it means there.
"""

import copy
from typing import NamedTuple

import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper

from .cache_rows import Selection, cache_among, close_up, repeat_rows
from .draw import draw
from .padding_mask import PaddingMask, attends_plainly


CHECK_EVERY = 16  # tokens between two looks at a device, each of which waits for it

NO_DISTRIBUTION = "probability tensor contains either `inf`, `nan` or element < 0"  # torch's words


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


class Rows(NamedTuple):
    """
    Holds R rows of a batch that are being written, or that have ended.

    Attributes:
        index (`torch.LongTensor` of shape `(R,)`): Which rows of the batch they are.
        lengths (`torch.LongTensor` of shape `(R,)`): Their tokens, prompts included.
        ids (`torch.LongTensor` of shape `(R, P + T)`): Prompts and completions.
        logps (`torch.Tensor` of shape `(R, T)`, *optional*): Of the completions.
    """

    index: torch.Tensor
    lengths: torch.Tensor
    ids: torch.Tensor
    logps: torch.Tensor | None

    @classmethod
    def of_prompts(cls, ids: torch.Tensor, has_logps: bool) -> "Rows":
        """Begin a row for each prompt of `(R, P)`."""
        index = torch.arange(len(ids), device=ids.device)
        lengths = torch.full_like(index, ids.shape[1])
        logps = ids.new_empty((len(ids), 0), dtype=torch.float32) if has_logps else None
        return cls(index, lengths, ids, logps)

    def append(
        self, tokens: torch.Tensor, token_logps: torch.Tensor | None, alive: torch.Tensor, pad: torch.Tensor | None
    ) -> "Rows":
        """Add a token `(R,)` to each row; one that is no longer alive gets padding."""
        logps = self.logps
        if logps is not None:
            logps = torch.cat([logps, token_logps.where(alive, 0.0)[:, None]], dim=1)
        if pad is not None:
            tokens = torch.where(alive, tokens, pad)
        ids = torch.cat([self.ids, tokens[:, None]], dim=1)
        return Rows(self.index, self.lengths + alive, ids, logps)

    def select(self, rows: torch.Tensor) -> "Rows":
        """Return some of the rows, by their indices."""
        logps = self.logps
        if logps is not None:
            logps = logps[rows]
        return Rows(self.index[rows], self.lengths[rows], self.ids[rows], logps)


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
    longest = stopping_criteria.max_length
    width = input_ids.shape[1]
    pad = generation_config._pad_token_tensor
    logits, mask, model_kwargs = _read_prompts(model, input_ids, copies, longest, model_kwargs)
    processors = _of_rows(logits_processor, copies)

    rows = Rows.of_prompts(input_ids[copies], logps_at is not None)
    device = rows.ids.device
    alive = torch.ones(len(copies), dtype=torch.bool, device=device)
    sound = torch.ones_like(alive)  # every token so far was drawn from a distribution
    ended: list[Rows] = []
    check_every = tokens_between_checks(device)
    while True:
        tokens, token_logps, has_distribution = _next_tokens(
            rows.ids, logits, processors, generation_config.do_sample, logps_at
        )
        sound = sound & (has_distribution | ~alive)
        rows = rows.append(tokens, token_logps, alive, pad)
        alive = alive & ~stopping_criteria(rows.ids, None)
        length = rows.ids.shape[1]
        if (length - width) % check_every == 0 or length >= longest:
            # The one place of the loop that waits for the device.
            still, all_sound = torch.stack([alive, sound]).tolist()
            if not all(all_sound):
                raise RuntimeError(NO_DISTRIBUTION)
            if not any(still):
                return _join([*ended, rows], width, 0 if pad is None else pad)
            if not all(still):
                over = [row for row, goes_on in enumerate(still) if not goes_on]
                ended.append(rows.select(torch.tensor(over).to(device)))
                selection = Selection.of(still, device)
                close_up(cache_among(model_kwargs), selection)
                if mask is not None:
                    mask.close_up(selection)
                kept = selection.rows
                model_kwargs = _select(model_kwargs, kept, len(still))
                processors = _of_rows(processors, kept)
                rows = rows.select(kept)
                alive = alive[kept]
                sound = sound[kept]
        inputs = model.prepare_inputs_for_generation(rows.ids, next_sequence_length=1, **model_kwargs)
        if mask is not None:
            inputs["attention_mask"] = mask.of(length)
        outputs = model(**inputs, return_dict=True)
        model_kwargs = model._update_model_kwargs_for_generation(outputs, model_kwargs)
        logits = outputs.logits[:, -1]


def _read_prompts(
    model, input_ids: torch.Tensor, copies: torch.Tensor, longest: int, model_kwargs: dict
) -> tuple[torch.Tensor, PaddingMask | None, dict]:
    """
    Compute every prompt once, and give each completion a row of the cache.

    Returns:
        `torch.Tensor` of shape `(R, V)`: The logits of the first token.
        [`PaddingMask`] or `None`: The mask, where the model needs no other.
        `dict`: The arguments of the forwards to come.
    """
    inputs = model.prepare_inputs_for_generation(input_ids, is_first_iteration=True, **model_kwargs)
    outputs = model(**inputs, return_dict=True)
    model_kwargs = model._update_model_kwargs_for_generation(outputs, model_kwargs)
    repeat_rows(cache_among(model_kwargs), copies, longest)
    mask = None
    if model_kwargs.get("attention_mask") is not None and attends_plainly(model, model_kwargs):
        # In what attention multiplies, which a head in fp32 or autocast around the model hides from the logits.
        dtype = cache_among(model_kwargs).layers[0].values.dtype
        mask = PaddingMask(model_kwargs.pop("attention_mask"), copies, longest, dtype)
    return outputs.logits[:, -1][copies], mask, _select(model_kwargs, copies, len(input_ids))


def tokens_between_checks(device: torch.device) -> int:
    """
    Return after how many tokens the loop looks which rows have ended. A CPU's result is there at once; on a device
    that runs behind the program a look costs more than rows that are computed in vain for a few tokens.
    """
    return 1 if device.type == "cpu" else CHECK_EVERY


def _next_tokens(
    ids: torch.Tensor, logits: torch.Tensor, processors: LogitsProcessorList, samples: bool, logps_at: float | None
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | bool]:
    """
    Choose the next token of every row, in few passes over the logits `(R, V)`: one that scales, one for the softmax,
    and one for [`draw`].

    Returns:
        `torch.LongTensor` of shape `(R,)`: Token ids.
        `torch.Tensor` of shape `(R,)` or `None`: Their log-probabilities at `logps_at`.
        `torch.BoolTensor` of shape `(R,)` or `bool`: Whether a row has a distribution.
    """
    temperature = _temperature_alone(processors)
    if temperature is None:
        # A processor may write into what it is given.
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
    if samples and temperature == logps_at:  # what is drawn has a probability greater than 0
        logps = probabilities.gather(1, tokens[:, None]).log()
    else:
        logps = _scaled(logits, logps_at).log_softmax(dim=-1).gather(1, tokens[:, None])
    return tokens, logps[:, 0], has_distribution


def _temperature_alone(processors: LogitsProcessorList) -> float | None:
    """Return the temperature, if nothing else is done to logits."""
    if not processors:
        return 1.0
    if len(processors) == 1 and type(processors[0]) is TemperatureLogitsWarper:
        return processors[0].temperature
    return None


def _scaled(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Divide logits by a temperature, in fp32; a divisor of that dtype lets one pass do both."""
    if temperature == 1.0:
        return logits.float()
    return logits / logits.new_full((1,), temperature, dtype=torch.float32)


def _select(model_kwargs: dict, rows: torch.Tensor, number: int) -> dict:
    """Select some of the `number` rows of a batch in the arguments of the forward."""
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


def _join(ended: list[Rows], width: int, pad) -> Samples:
    """Join the rows that ended at several times, in their first order and padded to the longest."""
    number = sum(len(part.index) for part in ended)
    longest = max(int(torch.cat([part.lengths for part in ended]).max()), width)
    first = ended[0]
    ids = first.ids.new_full((number, longest), int(pad))
    logps = None if first.logps is None else first.logps.new_zeros((number, longest - width))
    for part in ended:
        part_ids = part.ids[:, :longest]
        ids[part.index, : part_ids.shape[1]] = part_ids
        if logps is not None:
            part_logps = part.logps[:, : longest - width]
            logps[part.index, : part_logps.shape[1]] = part_logps
    return Samples(ids, logps)
