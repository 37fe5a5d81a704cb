"""Does compact sampling give what `generate` gives? Asked of the model itself, with a few greedy tokens."""

import torch
from torch.nn.functional import pad
from transformers import GenerationConfig, PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from ..scoring.packing_probe import evaluating, on_gpu, tokens
from .compact import compact_sample, contiguous_states, padded_left, why_not_select


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
        return (input_ids[:, self.width - 1] % 2 == 0) & (input_ids.shape[1] >= self.width + 3)


def probe(model: PreTrainedModel, vocabulary: int) -> str | None:
    """
    Say in one sentence why compact sampling is refused for a model whose samples it would change.

    The model is in evaluation mode meanwhile; nothing of it changes, and no random number is drawn.

    Args:
        model ([`~transformers.PreTrainedModel`]): The model, whole and on its devices.
        vocabulary (`int`): Number of its tokens.

    Returns:
        `str` or `None`: `None` where compact sampling changes nothing.
    """
    if (kind := rope_by_longest_row(model.config)) is not None:
        return f"rope_type={kind!r}: its frequencies depend on the longest row, which may be dropped."
    device = next(model.parameters()).device
    name = type(model).__name__
    prompts = []
    start = 0
    spread = tokens(sum(PROMPTS), vocabulary).tolist()
    for place, length in enumerate(PROMPTS):
        prompt = spread[start : start + length]
        prompts.append([*prompt[:-1], prompt[-1] - prompt[-1] % 2 + (place % 2)])
        start += length
    ids, mask = (part.to(device) for part in padded_left(prompts, 0))
    copies = torch.tensor(COPIES, device=device)
    stops = StoppingCriteriaList([_Some(ids.shape[1])])
    settings = {"max_new_tokens": LONGEST, "do_sample": False, "pad_token_id": 0, "disable_compile": True}
    config = GenerationConfig(**settings, eos_token_id=None)
    drawing = torch.random.fork_rng(devices=on_gpu(device))
    with torch.no_grad(), drawing, evaluating(model), contiguous_states(model):
        try:
            asked = GenerationConfig(**config.to_diff_dict(), return_dict_in_generate=True, output_scores=True)
            settings = {"generation_config": asked, "stopping_criteria": stops}
            theirs = model.generate(input_ids=ids[copies], attention_mask=mask[copies], **settings)
            if reason := why_not_select(theirs.past_key_values):
                return f"{name}: {reason}"
            settings |= {"generation_config": config, "custom_generate": compact_sample, "copies": copies}
            mine = model.generate(input_ids=ids, attention_mask=mask, **settings).ids
        except Exception as error:  # of whatever kind: the model's own code runs
            first = (str(error).strip().splitlines() or [""])[0][:160]
            return f"{name} fails with it ({type(error).__name__}: {first.rstrip('.')})."
    width = ids.shape[1]
    longest = max(mine.shape[1], theirs.sequences.shape[1])
    mine, theirs_ids = (pad(part, (0, longest - part.shape[1]))[:, width:] for part in (mine, theirs.sequences))
    for row, differs in enumerate(mine != theirs_ids):
        if differs.any():
            place = int(differs.int().argmax())  # the first
            scores = theirs.scores[place][row].float()
            gap = (scores[mine[row, place]] - scores[theirs_ids[row, place]]).abs().item()
            if gap > TIE * torch.finfo(next(model.parameters()).dtype).eps * scores.abs().max().item():
                return f"greedy tokens of {name} differ from those of generate, from the {place + 1}th on."
    return None


def rope_by_longest_row(config) -> str | None:
    """Return the kind of rotary positions, if their frequencies depend on the longest row of a call."""
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    types = [part.get("rope_type") for part in (rope, *rope.values()) if isinstance(part, dict)]  # per kind of layer
    return next((kind for kind in types if kind in ("dynamic", "longrope")), None)
