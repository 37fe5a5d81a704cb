"""Does compact sampling give what `generate` gives? Asked of the model itself, with a few greedy tokens."""

import torch
from transformers import GenerationConfig, PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from ..scoring.packing_probe import evaluating, on_gpu, tokens
from .compact import compact_sample, padded_left, why_not_select


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
    Why compact sampling is refused for a model whose samples it would change, in one sentence, or `None` where it does
    not. The model, whole and on its devices, is in evaluation mode meanwhile; nothing of it changes, and no random
    number is drawn. `vocabulary`: number of its tokens.
    """
    if (kind := rope_by_longest_row(model.config)) is not None:
        return f"rope_type={kind!r}: its frequencies depend on the longest row, which may be dropped."
    device, name = next(model.parameters()).device, type(model).__name__
    prompts, start = [], 0
    spread = tokens(sum(PROMPTS), vocabulary).tolist()
    for place, length in enumerate(PROMPTS):
        prompt = spread[start : start + length]
        prompts.append([*prompt[:-1], prompt[-1] - prompt[-1] % 2 + (place % 2)])
        start += length
    ids, mask = (part.to(device) for part in padded_left(prompts, 0))
    copies = torch.tensor(COPIES, device=device)
    stops = StoppingCriteriaList([_Some(ids.shape[1])])
    config = GenerationConfig(
        max_new_tokens=LONGEST, do_sample=False, pad_token_id=0, eos_token_id=None, disable_compile=True
    )
    with torch.no_grad(), torch.random.fork_rng(devices=on_gpu(device)), evaluating(model):
        try:
            theirs = model.generate(
                input_ids=ids[copies],
                attention_mask=mask[copies],
                generation_config=GenerationConfig(
                    **config.to_diff_dict(), return_dict_in_generate=True, output_scores=True
                ),
                stopping_criteria=stops,
            )
            if reason := why_not_select(theirs.past_key_values):
                return f"{name}: {reason}"
            mine = model.generate(
                input_ids=ids,
                attention_mask=mask,
                generation_config=config,
                stopping_criteria=stops,
                custom_generate=compact_sample,
                copies=copies,
            ).ids
        except Exception as error:  # of whatever kind: the model's own code runs
            first = (str(error).strip().splitlines() or [""])[0][:160]
            return f"{name} fails with it ({type(error).__name__}: {first.rstrip('.')})."
    width = ids.shape[1]
    for row in range(len(COPIES)):
        if place := _first_difference(mine[row, width:], theirs.sequences[row, width:]):
            scores = theirs.scores[place - 1][row].float()
            chosen = (mine[row, width + place - 1], theirs.sequences[row, width + place - 1])
            gap = (scores[chosen[0]] - scores[chosen[1]]).abs().item()
            unit = torch.finfo(next(model.parameters()).dtype).eps * scores.abs().max().item()
            if gap > TIE * unit:
                return f"greedy tokens of {name} differ from those of generate, from the {place}th on."
    return None


def rope_by_longest_row(config) -> str | None:
    """The kind of rotary positions, if their frequencies depend on the longest row of a call."""
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    types = [part.get("rope_type") for part in (rope, *rope.values()) if isinstance(part, dict)]  # per kind of layer
    return next((kind for kind in types if kind in ("dynamic", "longrope")), None)


def _first_difference(mine: torch.Tensor, theirs: torch.Tensor) -> int:
    """The first place, from 1, at which two rows differ; 0 if none."""
    length = min(len(mine), len(theirs))
    places = (mine[:length] != theirs[:length]).nonzero()
    if len(places):
        return int(places[0]) + 1
    return 0 if len(mine) == len(theirs) else length + 1
