"""What becomes of a model's language: variety of its samples, and how well it foretells real text."""

import zlib
from collections.abc import Sequence

import torch


def distinct(sequences: Sequence[Sequence[int]], n: int) -> float | None:
    """
    Distinct-n (Li et al. 2016, arXiv 1510.03055): different n-grams by all n-grams of the sequences; `None` without
    any. It falls with the amount of text, so compare equal amounts.
    """
    grams = [gram for ids in sequences for gram in zip(*(ids[i:] for i in range(n)), strict=False)]
    return len(set(grams)) / len(grams) if grams else None


def compression_ratio(texts: Sequence[str]) -> float:
    """Bytes of the texts by their bytes after zlib: higher where they repeat one another (arXiv 2403.00553)."""
    whole = "\n".join(texts).encode("utf-8", "replace")
    return len(whole) / len(zlib.compress(whole, 9))


def real_text(size: int) -> str:
    """The first `size` characters of Python's own documentation, as `help()` shows it: English at hand anywhere."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))[:size]


@torch.no_grad()
def perplexity(model, ids: Sequence[int], window: int = 256) -> float:
    """
    Perplexity of a text: exp of the mean negative log-probability of its tokens in nats, over windows that know
    nothing of one another; the first token of each is not counted.

    Args:
        model (`PreTrainedModel`): The model, in evaluation mode.
        ids (`Sequence[int]`): Tokens of the text.
        window (`int`, *optional*, defaults to `256`): Tokens of a window; an incomplete last one is left out, unless
            it is the only one.
    """
    size = min(window, len(ids))
    device, losses = next(model.parameters()).device, []
    for start in range(0, len(ids) - size + 1, size):
        part = torch.tensor([ids[start : start + size]], device=device)
        logps = torch.log_softmax(model(input_ids=part).logits[0, :-1].float(), dim=-1)
        losses.append(-logps.gather(-1, part[0, 1:, None]).mean())
    return torch.stack(losses).mean().exp().item()
