"""Estimates and their uncertainty: pass@k, bootstrap intervals over prompts, t-intervals over seeds."""

from typing import NamedTuple

import numpy as np
from scipy import stats

from eval.metrics.pass_at_k.pass_at_k import pass_at_k


__all__ = [
    "Estimate",
    "bootstrap_interval",
    "paired_bootstrap_difference",
    "paired_bootstrap_ratio",
    "pass_at_k",
    "pass_at_k_per_prompt",
    "t_interval",
]


class Estimate(NamedTuple):
    """A number and its confidence interval, all three in the same unit."""

    value: float
    low: float
    high: float


def pass_at_k_per_prompt(correct, n: int, k: int) -> np.ndarray:
    """
    pass@k of each prompt, for prompts that all have `n` samples.

    Args:
        correct (`list[int]`): Correct samples per prompt, shape (P,).
        n (`int`): Samples per prompt.
        k (`int`): Size of the draw.

    Returns:
        `np.ndarray`: Shape (P,), each in [0, 1].

    Raises:
        ValueError: As [`pass_at_k`].
    """
    return np.array([pass_at_k(n, c, k) for c in correct])


def _percentile_bootstrap(samples, statistic, level, resamples, seed) -> tuple[float, float]:
    """Percentile bootstrap (Efron 1979); samples of shape (P,) each are resampled together, prompt by prompt."""
    if len(samples[0]) < 2:
        raise ValueError(f"{len(samples[0])} prompt(s) give no bootstrap interval; at least 2 are needed.")
    interval = stats.bootstrap(
        samples,
        statistic,
        n_resamples=resamples,
        paired=len(samples) > 1,
        vectorized=True,
        confidence_level=level,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(interval.low), float(interval.high)


def _paired(a, b) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if a.shape != b.shape:
        raise ValueError(f"Paired values need the same prompts on both sides, got shapes {a.shape} and {b.shape}.")
    return a, b


def bootstrap_interval(
    per_prompt_values, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """
    Percentile-bootstrap interval of the mean over prompts.

    It covers the choice of prompts and the sampling of completions, not the variation between training seeds.

    Args:
        per_prompt_values (`list[float]`): One value per prompt, shape (P,), P >= 2.
        level (`float`, *optional*, defaults to `0.95`): Nominal coverage.
        resamples (`int`, *optional*, defaults to `2000`): Bootstrap resamples.
        seed (`int`, *optional*, defaults to `0`): Seed of the resampling.

    Returns:
        `tuple[float, float]`: Lower and upper end, in the unit of the values.

    Raises:
        ValueError: If there are fewer than 2 prompts.
    """
    return _percentile_bootstrap((np.asarray(per_prompt_values, dtype=float),), np.mean, level, resamples, seed)


def paired_bootstrap_difference(a, b, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> Estimate:
    """
    Mean of `a - b` over prompts, both sides measured on the same prompts, with its percentile-bootstrap interval.

    Args:
        a, b (`list[float]`): One value per prompt, shape (P,) each, in the same order of prompts.
        level, resamples, seed: As in [`bootstrap_interval`].

    Returns:
        [`Estimate`]: The difference and its interval.

    Raises:
        ValueError: If the shapes differ or there are fewer than 2 prompts.
    """
    a, b = _paired(a, b)
    difference = a - b
    return Estimate(float(difference.mean()), *bootstrap_interval(difference, level, resamples, seed))


def paired_bootstrap_ratio(a, b, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> Estimate:
    """
    Ratio of means `mean(a) / mean(b)`, both sides measured on the same prompts, with its percentile-bootstrap interval.

    Args:
        a, b (`list[float]`): One value per prompt, shape (P,) each, in the same order of prompts.
        level, resamples, seed: As in [`bootstrap_interval`].

    Returns:
        [`Estimate`]: The ratio and its interval; an end is `inf` where resamples have a zero denominator.

    Raises:
        ValueError: If the shapes differ, there are fewer than 2 prompts, or the mean of `b` is 0.
    """
    a, b = _paired(a, b)
    if b.mean() == 0:
        raise ValueError("The mean of b is 0: there is no ratio to it.")

    def ratio(x, y, axis=-1):
        numerator, denominator = x.mean(axis=axis), y.mean(axis=axis)
        return np.divide(numerator, denominator, out=np.full_like(numerator, np.inf), where=denominator != 0)

    with np.errstate(invalid="ignore"):  # SciPy also takes the spread of the resamples, undefined once one is inf
        interval = _percentile_bootstrap((a, b), ratio, level, resamples, seed)
    return Estimate(float(a.mean() / b.mean()), *interval)


def t_interval(values, level: float = 0.95) -> Estimate:
    """
    Mean of a few independent values (training seeds) with its Student-t interval.

    Args:
        values (`list[float]`): Shape (S,), S >= 2, taken as independent and roughly normal.
        level (`float`, *optional*, defaults to `0.95`): Nominal coverage.

    Returns:
        [`Estimate`]: The mean and its interval.

    Raises:
        ValueError: If there are fewer than 2 values.
    """
    values = np.asarray(values, dtype=float)
    if len(values) < 2:
        raise ValueError(f"{len(values)} value(s) give no interval; at least 2 seeds are needed.")
    half_width = stats.sem(values) * stats.t.ppf((1 + level) / 2, df=len(values) - 1)
    mean = float(values.mean())
    return Estimate(mean, mean - float(half_width), mean + float(half_width))
