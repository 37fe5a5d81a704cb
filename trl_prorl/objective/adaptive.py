"""An adaptive KL coefficient: a proportional controller in log space."""


def next_coefficient(coefficient: float, kl: float, target: float, steps: int, horizon: float) -> float:
    """
    β ← β · (1 + clip(kl/target − 1, −0.2, 0.2) · steps/horizon), from Ziegler et al. 2019 (arXiv 1909.08593, section
    2.2).

    Args:
        coefficient (`float`): The coefficient so far, positive.
        kl (`float`): The KL to the active anchor since the last call, in nats per token.
        target (`float`): The KL to reach, in nats per token.
        steps (`int`): Optimizer steps since the last call.
        horizon (`float`): Optimizer steps in which a persistent error of 20 % or more moves the coefficient by 20 %.

    Returns `float`: positive, and at least half of `coefficient`, whatever the number of steps.
    """
    error = min(max(kl / target - 1.0, -0.2), 0.2)
    return coefficient * max(1.0 + error * steps / horizon, 0.5)
