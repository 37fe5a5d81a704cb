"""An adaptive KL coefficient: a proportional controller in log space."""


def next_coefficient(coefficient: float, kl: float, target: float, steps: int, horizon: float) -> float:
    """
    β ← β · (1 + clip(kl/target − 1, −0.2, 0.2) · steps/horizon), from Ziegler et al. 2019 (arXiv 1909.08593, section
    2.2), positive and at least half of β: `kl` and `target` in nats per token, `steps` optimizer steps since the last
    call, `horizon` those in which a persistent error of 20 % or more moves β by 20 %.
    """
    error = min(max(kl / target - 1.0, -0.2), 0.2)
    return coefficient * max(1.0 + error * steps / horizon, 0.5)
