"""Text statistics from tokens and logits: drift from the starting model, diversity, perplexity of English."""

import zlib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from trl_prorl.eval.analysis.statistics import ratio_interval


class TokenDrift(NamedTuple):
    """Tensors of one shape with a value per token: `token_agreement` is 0 or 1, the others are in nats."""

    kl_to_base: torch.Tensor
    token_agreement: torch.Tensor
    entropy: torch.Tensor
    base_entropy: torch.Tensor


def token_drift(logits: torch.Tensor, base_logits: torch.Tensor, temperature: float = 1.0) -> TokenDrift:
    r"""
    Return the differences between a policy and base at every token, from logits of shape (..., V), both divided by the
    temperature as in sampling; of shape (...).

    \\( \mathrm{KL}(\pi\|\pi_0) = \sum_a \pi(a) (\log\pi(a) - \log\pi_0(a)) \\), exact, no estimate from the sampled
    token.
    """
    logps = torch.log_softmax(logits.float() / temperature, dim=-1)
    base_logps = torch.log_softmax(base_logits.float() / temperature, dim=-1)
    # Tokens with probability 0 add nothing to a mean; with logits of −∞ the products would be NaN.
    probabilities = logps.exp()
    base_probabilities = base_logps.exp()
    return TokenDrift(
        kl_to_base=_expected(logps - base_logps, probabilities),
        token_agreement=(logits.argmax(-1) == base_logits.argmax(-1)).float(),
        entropy=-_expected(logps, probabilities),
        base_entropy=-_expected(base_logps, base_probabilities),
    )


def _expected(values: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
    """Return the expectation over the vocabulary, the last axis; tokens with probability 0 do not count."""
    return torch.where(probabilities > 0, probabilities * values, 0.0).sum(-1)


def model_drift(sums: np.ndarray) -> dict[str, float]:
    """
    Return means over the tokens of all samples, with a 95 % interval of the KL over prompts, from a row per prompt,
    shape (P, M + 1): sums over its tokens of the M measures of [`TokenDrift`], and the number of tokens.
    """
    tokens = sums[:, -1]
    means = dict(zip(TokenDrift._fields, sums[:, :-1].sum(0) / tokens.sum(), strict=True))
    # Log-probability under base: the expectation over the policy, not the mean over the sampled tokens.
    base_logp = -(means["kl_to_base"] + means["entropy"])
    return {**means, "interval": list(ratio_interval(sums[:, 0], tokens)), "base_logp": base_logp}


def distinct(sequences: Sequence[Sequence[int]], n: int) -> float | None:
    """
    Return distinct-n (Li et al. 2016, arXiv 1510.03055): distinct n-grams / all n-grams of the sequences; `None`
    without any. It falls with the amount of text, so compare equal amounts.
    """
    grams = [gram for ids in sequences for gram in zip(*(ids[i:] for i in range(n)), strict=False)]
    return len(set(grams)) / len(grams) if grams else None


def compression_ratio(texts: Sequence[str]) -> float:
    """Return bytes of the texts / bytes after zlib: higher if texts repeat each other (arXiv 2403.00553)."""
    whole = "\n".join(texts).encode("utf-8", "replace")
    return len(whole) / len(zlib.compress(whole, 9))


def real_text(size: int) -> str:
    """
    Return the first `size` characters of Python's documentation, as `help()` shows it: English text on every machine.
    """
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))[:size]


ENCODED_LETTERS = 0.99  # share of the letters of a text that must survive encoding and decoding
TOKEN_LENGTH = 2.0  # least characters per token; a vocabulary with English words has 3 to 5


def knows_words_of(tokenizer, text: str) -> bool:
    """
    Return whether a vocabulary has words of a language, or parts of words, judged by a text in that language.

    It has none if letters of the text are lost as unknown tokens, or if tokens are hardly longer than a character, as
    with a vocabulary of bytes or digits.
    """
    ids = tokenizer(text, add_special_tokens=False).input_ids
    if not ids:
        return False
    letters = _letters(text)
    given_back = letters & _letters(tokenizer.decode(ids, skip_special_tokens=True))
    all_encoded = given_back.total() >= ENCODED_LETTERS * letters.total()
    return all_encoded and len(text) / len(ids) >= TOKEN_LENGTH


def _letters(text: str) -> Counter[str]:
    """Return the count of each letter of a text, ignoring case."""
    return Counter(character.casefold() for character in text if character.isalpha())


@torch.no_grad()
def perplexity(model, ids: Sequence[int], window: int = 256) -> float:
    """
    Return the perplexity of a text under a model in evaluation mode: exp of the mean negative log-probability of its
    tokens in nats, over independent windows; the first token of each is not counted. An incomplete last window is
    dropped, unless it is the only one.
    """
    size = min(window, len(ids))
    device = next(model.parameters()).device
    losses = []
    for start in range(0, len(ids) - size + 1, size):
        part = torch.tensor([ids[start : start + size]], device=device)
        logps = torch.log_softmax(model(input_ids=part).logits[0, :-1].float(), dim=-1)
        losses.append(-logps.gather(-1, part[0, 1:, None]).mean())
    return torch.stack(losses).mean().exp().item()
