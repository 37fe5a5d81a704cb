"""Does compact sampling give what `generate` gives? Asked of the model itself, with a few greedy tokens."""

import torch
from torch.nn.functional import pad
from transformers import GenerationConfig, PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from ..launch.model_defaults import plain_generation_config
from ..launch.prompts import pad_left
from .cache_rows import cache_among, why_not_select
from .compact import compact_sample
from .head import contiguous_states
from .packing import rope_by_longest_row
from .trial import first_line, tokens


PROMPTS = (3, 9, 5, 7)  # tokens of each; after the first completions have ended, two prompts are left
COPIES = (0, 0, 1, 2, 2, 3)
LONGEST = 8  # tokens of a completion
# Two tokens whose logits differ by less than so many units in the last place of the larger may change places.
TIE = 64


class _Some(StoppingCriteria):
    """Ends the rows whose last token of the prompt is even after three tokens, so that rows are dropped."""

    def __init__(self, width: int):
        self.width = width

    def __call__(self, input_ids, scores, **kwargs):
        is_even = input_ids[:, self.width - 1] % 2 == 0
        return is_even & (input_ids.shape[1] >= self.width + 3)


def probe(model: PreTrainedModel, vocabulary: int) -> str | None:
    """
    Return, in one sentence, why compact sampling is refused for a model whose samples it would change.

    Args:
        model ([`~transformers.PreTrainedModel`]): The model, on trial (see [`~trl_prorl.fast.trial`]).
        vocabulary (`int`): Number of its tokens.

    Returns:
        `str` or `None`: `None` where compact sampling changes nothing.
    """
    kind = rope_by_longest_row(model.config)
    if kind is not None:
        return f"rope_type={kind!r}: its frequencies depend on the longest row, which may be dropped early."
    device = next(model.parameters()).device
    name = type(model).__name__
    ids, mask = pad_left(_trial_prompts(vocabulary), 0)
    ids = ids.to(device)
    mask = mask.to(device)
    copies = torch.tensor(COPIES, device=device)
    stops = StoppingCriteriaList([_Some(ids.shape[1])])
    config = GenerationConfig(
        max_new_tokens=LONGEST, do_sample=False, pad_token_id=0, disable_compile=True, eos_token_id=None
    )
    with torch.no_grad(), plain_generation_config(model), contiguous_states(model):
        try:
            with_scores = GenerationConfig(**config.to_diff_dict(), return_dict_in_generate=True, output_scores=True)
            theirs = model.generate(
                input_ids=ids[copies],
                attention_mask=mask[copies],
                generation_config=with_scores,
                stopping_criteria=stops,
            )
            reason = why_not_select(cache_among(theirs))
            if reason is not None:
                return f"{name}: {reason}"
            mine = model.generate(
                input_ids=ids,
                attention_mask=mask,
                generation_config=config,
                stopping_criteria=stops,
                custom_generate=compact_sample,
                copies=copies,
            )
        except Exception as error:  # of whatever kind: the model's own code runs
            return f"{name} fails during compact generation ({first_line(error)})."
    precision = torch.finfo(next(model.parameters()).dtype).eps
    place = _first_difference(mine.ids, theirs.sequences, theirs.scores, ids.shape[1], precision)
    if place is not None:
        return f"greedy tokens of {name} differ from those of generate from token {place + 1} on."
    return None


def _trial_prompts(vocabulary: int) -> list[list[int]]:
    """Make prompts whose last tokens are even and odd in turn, so that `_Some` ends every second one."""
    spread = tokens(sum(PROMPTS), vocabulary).tolist()
    prompts = []
    start = 0
    for place, length in enumerate(PROMPTS):
        prompt = spread[start : start + length]
        last = prompt[-1] - prompt[-1] % 2 + (place % 2)
        prompts.append([*prompt[:-1], last])
        start += length
    return prompts


def _first_difference(
    mine: torch.Tensor, theirs: torch.Tensor, scores: tuple[torch.Tensor, ...], width: int, precision: float
) -> int | None:
    """
    Find where a completion first differs by more than a tie of two tokens.

    Args:
        mine, theirs (`torch.LongTensor` of shape `(R, width + T)`): Prompts and completions; T may differ.
        scores (`tuple[torch.Tensor]`): Of each token of theirs, of shape `(R, V)`.
        width (`int`): Tokens of the prompts.
        precision (`float`): The unit in the last place of 1.
    """
    longest = max(mine.shape[1], theirs.shape[1])
    mine = pad(mine, (0, longest - mine.shape[1]))[:, width:]
    theirs = pad(theirs, (0, longest - theirs.shape[1]))[:, width:]
    for row, differs in enumerate(mine != theirs):
        if differs.any():
            place = int(differs.int().argmax())  # the first
            score = scores[place][row].float()
            gap = score[mine[row, place]] - score[theirs[row, place]]
            if gap.abs().item() > TIE * precision * score.abs().max().item():
                return place
    return None
