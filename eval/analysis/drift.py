"""
How far a policy has moved from base: per token from logits, per model from sums over prompts, over a run's steps.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from eval.analysis.statistics import ratio_interval
from eval.run_folder.run import Run


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


def model_drift(sums: np.ndarray) -> dict[str, float]:
    """
    Means over the tokens of all samples, with a 95 % bootstrap interval of the KL over prompts.

    Args:
        sums (`np.ndarray`): A row per prompt, shape (P, 5): sums over its tokens of the four measures of
            [`TokenDrift`] in their order, and the number of tokens.
    """
    kl, agreement, entropy, base_entropy = sums[:, :4].sum(0) / sums[:, 4].sum()
    return {
        "kl_to_base": kl,
        "interval": list(ratio_interval(sums[:, 0], sums[:, 4])),
        "token_agreement": agreement,
        "entropy": entropy,
        "base_entropy": base_entropy,
    }


def drift_points(run: Run) -> list[dict]:
    """The points of a run whose step is known."""
    return [point for point in (run.drift or {}).get("points", []) if point["step"] is not None]


def drift_series(run: Run, key: str) -> pd.Series | None:
    """One measure over optimizer steps; `None` if it was not measured."""
    points = {point["step"]: point[key] for point in drift_points(run) if point.get(key) is not None}
    return pd.Series(points, dtype=float).sort_index() if points else None


def kl_interval(runs: list[Run]) -> pd.DataFrame | None:
    """KL to base of the one run that measured it, with its interval; `None` if a point has none."""
    points = next(drift_points(run) for run in runs if drift_series(run, "kl_to_base") is not None)
    if not all(point.get("interval") for point in points):
        return None
    rows = {point["step"]: (point["kl_to_base"], *point["interval"]) for point in points}
    return pd.DataFrame.from_dict(rows, orient="index", columns=["mean", "low", "high"])
