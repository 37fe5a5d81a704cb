"""How far a policy has moved from base at every token, from logits."""

from typing import NamedTuple

import torch


class TokenDrift(NamedTuple):
    """Tensors of one shape, a value per token, in nats but for `agreement` (0 or 1)."""

    kl: torch.Tensor
    agreement: torch.Tensor
    entropy: torch.Tensor
    base_entropy: torch.Tensor


def token_drift(logits: torch.Tensor, base_logits: torch.Tensor, temperature: float = 1.0) -> TokenDrift:
    r"""
    The differences between a policy and base at every token.

    \\( \mathrm{KL}(\pi\|\pi_0) = \sum_a \pi(a) (\log\pi(a) - \log\pi_0(a)) \\), exact, no estimate from the sampled
    token.

    Args:
        logits, base_logits (`torch.Tensor`): Shape (..., V).
        temperature (`float`, *optional*, defaults to `1.0`): Both are divided by it, as in sampling.

    Returns:
        [`TokenDrift`]: Of shape (...).
    """
    logps = torch.log_softmax(logits.float() / temperature, dim=-1)
    base_logps = torch.log_softmax(base_logits.float() / temperature, dim=-1)
    # Tokens that cannot be sampled add nothing; with logits of −∞ the products would be NaN.
    probabilities, base_probabilities = logps.exp(), base_logps.exp()
    possible, base_possible = probabilities > 0, base_probabilities > 0

    def expected(values, probabilities, possible):
        return torch.where(possible, probabilities * values, 0.0).sum(-1)

    return TokenDrift(
        kl=expected(logps - base_logps, probabilities, possible),
        agreement=(logits.argmax(-1) == base_logits.argmax(-1)).float(),
        entropy=-expected(logps, probabilities, possible),
        base_entropy=-expected(base_logps, base_probabilities, base_possible),
    )
