"""
Compact sampling: a prompt is computed once for all its completions, and finished completions are dropped.

[`compact_sample`] is a decoding loop for the argument `custom_generate` of transformers' `generate`, so every
generation setting keeps its meaning.

    rows.py            the rows while they are decoded: how a token is chosen, and when a row ends
    token_forward.py   the forward of every row's next token
    batch_cache.py     its cache, of which finished rows are dropped
    recording.py       a token's step as a CUDA graph
"""

from typing import NamedTuple

import torch

from .batch_cache import Room, Selection, cache_among, repeat_rows
from .prefix import without_cudnn
from .recording import RecordedSteps, Recordings
from .rows import Rows, TokenChoice
from .token_forward import PlainForward, TokenForward, attends_plainly, select_kwargs


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
        step = TokenForward(model, select_kwargs(model_kwargs, copies, len(input_ids)), rows)

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


def tokens_between_checks(device: torch.device) -> int:
    """
    Return the tokens between two checks for finished rows: an asynchronous device computes a few tokens faster than it
    checks.
    """
    return 1 if device.type == "cpu" else CHECK_EVERY
