r"""
Trust regions around the policy that sampled, in place of TRL's clip of the importance ratio (`trust_region`).

With the ratio r = π/π_old and a mask M, the policy gradient of a token is M · r · A · ∇log π. The loss's mean is over
all tokens. μ is the policy that sampled: vLLM by its log-probabilities, else π_old. With vLLM, TRL's correction
multiplies r by π_old/μ. A token moves *outward* if A > 0 and π > μ, or A < 0 and π < μ. δ is the threshold.

| name | M = 0 | source |
|---|---|---|
| `dppo_tv` | outward, and abs(π − μ) > δ | DPPO, arXiv 2602.04879v3, eq. 12, 13 |
| `dppo_kl` | outward, and μ log(μ/π) + (1 − μ) log((1 − μ)/(1 − π)) > δ | the same, eq. 12, 14 |
| `ipo` | abs(π − μ) > δ | prime-rl since its PR 3418, without the KL, as since PR 3586 |
| `m2po` | outward, and the largest (log π/μ)², until the mean of the other outward tokens is at most δ | see below |

M2PO: arXiv 2510.01161v2, eq. 4, 5, algorithm 1, over the tokens of a micro-batch. (The authors' code differs: it turns
the threshold into a clip of the ratio.) verl's DPPO also limits r to 20.
"""

from collections.abc import Mapping

import torch


def bernoulli_kl(sampler_logps: torch.Tensor, logps: torch.Tensor) -> torch.Tensor:
    """Compute the KL of the event that a token is sampled, under μ and under π, shape `(B, T)`, in nats."""
    sampler_rest = torch.expm1(sampler_logps).abs()  # 1 − μ
    rest = torch.expm1(logps).abs()  # 1 − π
    sampled = sampler_logps.exp() * (sampler_logps - logps)
    return sampled + torch.xlogy(sampler_rest, sampler_rest / rest)  # `xlogy`: 0 log 0 = 0


def beyond_mean(values: torch.Tensor, tokens: torch.Tensor, threshold: float) -> torch.Tensor:
    """
    Return the largest values `(B, T)` of some tokens, without which the mean of the others is at most a threshold.
    """
    ascending, order = values[tokens].sort()
    numbers = torch.arange(1, len(ascending) + 1, device=values.device)
    beyond = ascending.cumsum(0) / numbers > threshold
    result = torch.zeros_like(tokens)
    result[tokens] = torch.zeros_like(beyond).scatter(0, order, beyond)
    return result


def by_token(advantages: torch.Tensor) -> torch.Tensor:
    """Return advantages `(B,)` as `(B, 1)`; those `(B, T)` of a subclass, which TRL allows, as they are."""
    return advantages.unsqueeze(1) if advantages.dim() == 1 else advantages


def masked_tokens(
    name: str,
    threshold: float,
    logps: torch.Tensor,
    sampler_logps: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
) -> torch.Tensor:
    """
    Return whether each token is outside the trust region, shape `(B, T)`.

    Args:
        name (`str`): One of [`~trl_prorl.supported.TRUST_REGIONS`].
        threshold (`float`): δ of the table above.
        logps, sampler_logps (`torch.Tensor` of shape `(B, T)`):
            Log-probabilities of the sampled tokens under π_θ and under μ.
        advantages (`torch.Tensor` of shape `(B,)` or `(B, T)`): A.
        mask (`torch.Tensor` of shape `(B, T)`): 1 for tokens that count.
    """
    log_ratio = logps - sampler_logps
    outward = (by_token(advantages) * log_ratio > 0.0) & mask.bool()
    moved = (logps.exp() - sampler_logps.exp()).abs()
    match name:
        case "dppo_tv":
            return outward & (moved > threshold)
        case "dppo_kl":
            return outward & (bernoulli_kl(sampler_logps, logps) > threshold)
        case "ipo":
            return (moved > threshold) & mask.bool()
        case "m2po":
            return beyond_mean(log_ratio.square(), outward, threshold)


def sampler_of(batch: Mapping[str, torch.Tensor], logps: torch.Tensor) -> torch.Tensor:
    """
    Return the log-probabilities `(B, T)` of the policy that sampled a batch: vLLM's, else π_old's, also of a token
    without one (TRL's NaN). A batch without both had no update yet, so they are `logps`.
    """
    old_logps = batch.get("old_per_token_logps", logps)
    sampler_logps = batch.get("sampling_per_token_logps", old_logps)
    return torch.where(sampler_logps.isnan(), old_logps, sampler_logps)
