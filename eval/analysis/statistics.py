"""Estimates and their uncertainty: pass@k, intervals over prompts or seeds, tests of paired outcomes."""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import stats

from trl_prorl.pass_at_k import pass_at_k


MIN_PROMPTS = 20
ERROR_RATE = 0.05
QUANTILE = float(stats.norm.ppf(1 - ERROR_RATE / 2))  # z = 1.96
RESAMPLES = 2000
NO_INTERVAL = (math.nan, math.nan)


class Estimate(NamedTuple):
    """A number and its confidence interval, all in the same unit; the ends are NaN without an interval."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def pass_at_k_per_prompt(correct, n: int, k: int) -> np.ndarray:
    """
    Return pass@k of each prompt, shape (P,), from the number of correct samples among its `n`.

    Raises:
        ValueError: As [`pass_at_k`].
    """
    return np.array([_pass_at_k(n, int(c), k) for c in correct])


_pass_at_k = lru_cache(maxsize=None)(pass_at_k)


def pass_at_k_bound(correct, n: int, k: int) -> float:
    r"""
    Return an estimate of the largest pass@k that the mean and the variance of pass@1 over prompts allow.

    By Jensen's inequality E[(1 − ρ)^k] ≥ E[(1 − ρ)²]^(k/2) for k ≥ 2, so pass@k ≤ 1 − ((1 − E ρ)² + Var ρ)^(k/2)
    (ProRL, arXiv 2505.24864). Sampling noise is taken out of the variance, so the bound at k = 2 is pass@2 itself. For
    prompts that are about equally difficult, the measured pass@k is above the estimate in half of the draws.

    Args:
        correct (`Sequence[int]` of length P): Correct samples of each prompt.
        n (`int`): Samples of each prompt.
        k (`int`): Samples drawn. With k = 1 the result is pass@1.
    """
    if k == 1:
        return float(pass_at_k_per_prompt(correct, n, 1).mean())
    both_fail = 1 - float(pass_at_k_per_prompt(correct, n, 2).mean())  # without bias, (1 − E ρ)² + Var ρ
    return 1 - both_fail ** (k / 2)


@lru_cache(maxsize=4)
def _draws(prompts: int) -> np.ndarray:
    """Return how often each resample contains each prompt, shape (RESAMPLES, P)."""
    drawn = np.random.default_rng(0).integers(prompts, size=(RESAMPLES, prompts))
    places = drawn + prompts * np.arange(RESAMPLES)[:, None]
    counts = np.bincount(places.ravel(), minlength=prompts * RESAMPLES)
    return counts.reshape(RESAMPLES, prompts).astype(float)


def _is_constant(values: np.ndarray) -> bool:
    return np.allclose(values, values[0], rtol=0, atol=1e-12)


def _adjusted(values: np.ndarray, least: float) -> tuple[float, float]:
    """
    Return the mean of values from `least` to 1, shape (P,), and its standard error, both with pseudo-prompts at the
    two ends: z²/2 at 0 and at 1 (Agresti & Coull 1998); 1 at -1 and at 1 for paired differences (Bonett & Price 2012).

    Both papers are about 0 or 1 at each prompt. Values in between, whose variance is measured, are our generalisation.
    """
    pseudo_prompts = 1.0 if least < 0 else QUANTILE**2 / 2
    weights = np.append(np.ones(len(values)), [pseudo_prompts, pseudo_prompts])
    values = np.append(values, [least, 1.0])
    mean = np.average(values, weights=weights)
    variance = np.average((values - mean) ** 2, weights=weights)
    return float(mean), math.sqrt(variance / weights.sum())


def prompt_interval(per_prompt_values, least: float = 0.0) -> tuple[float, float]:
    """
    Return the 95 % interval of the mean over prompts, in the unit of the values, shape (P,), each from `least` (0, or
    -1 for differences) to 1; NaN with fewer than 20 prompts.

    It covers the choice of prompts and the sampling of completions, not the variation between training seeds.
    Pseudo-prompts move its middle away from the mean of the values, which is always inside.
    """
    values = np.asarray(per_prompt_values, dtype=float)
    if len(values) < MIN_PROMPTS:
        return NO_INTERVAL
    mean, standard_error = _adjusted(values, least)
    half_width = QUANTILE * standard_error
    return max(mean - half_width, least), min(mean + half_width, 1.0)


def paired_difference(a, b) -> Estimate:
    """Return the mean of `a - b` over prompts, shape (P,) each in the same order, with its interval."""
    difference = np.subtract(a, b, dtype=float)
    return Estimate(float(difference.mean()), *prompt_interval(difference, least=-1.0))


def ratio_interval(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """
    Return the percentile-bootstrap interval (Efron 1979) of `mean(a) / mean(b)` over prompts, shape (P,) each: a
    prompt is resampled with both of its values. With sums and numbers of tokens this is a mean over tokens, weighted
    by length. An end is `inf` if the denominator may be 0; both are NaN with fewer than 20 prompts.
    """
    prompts = len(a)
    if prompts < MIN_PROMPTS:
        return NO_INTERVAL
    numerators, denominators = (_draws(prompts) @ np.stack([a, b], axis=1) / prompts).T
    ratios = np.divide(numerators, denominators, out=np.full(RESAMPLES, np.inf), where=denominators != 0)
    with np.errstate(invalid="ignore"):
        low, high = np.percentile(ratios, [2.5, 97.5])
    if math.isnan(high):  # between two resamples of inf
        high = math.inf
    return float(low), float(high)


def detectable_difference(estimate: Estimate, tests: int = 1) -> float:
    r"""
    Return the true difference that is detected with 80 % power, in the unit of the difference, from its 95 % interval
    over many prompts, which is nearly normal.

    A single test detects \\( (z_{0.975} + z_{0.8}) / z_{0.975} = 1.43 \\) times half the width. (A difference of half
    the width is detected with a power of only 50 %.) With Holm's correction over M `tests` the least p must be at most
    0.05 / M, so \\( z_{1 - 0.025 / M} \\) takes the place of the first \\( z_{0.975} \\).
    """
    critical, power = stats.norm.ppf([1 - ERROR_RATE / 2 / tests, 0.8])
    return float((critical + power) / QUANTILE * (estimate.high - estimate.low) / 2)


def t_interval(values, level: float = 0.95) -> Estimate:
    """
    Return the mean of a few values (training seeds), shape (S,), with its Student-t interval: the values are assumed
    to be independent and roughly normal.

    Raises:
        ValueError: If there are fewer than 2 values.
    """
    values = np.asarray(values, dtype=float)
    if len(values) < 2:
        raise ValueError(f"An interval needs at least 2 seeds, got {len(values)}.")
    half_width = stats.sem(values) * stats.t.ppf((1 + level) / 2, df=len(values) - 1)
    mean = float(values.mean())
    return Estimate(mean, mean - float(half_width), mean + float(half_width))


def prompts_and_seeds(values: list[np.ndarray], same: bool, least: float = 0.0) -> Estimate | None:
    """
    Return the mean over runs with the hull of two 95 % intervals: over prompts, if these are the `same` in all runs,
    and, with several runs, Student's t over runs; `None` without runs.

    Args:
        values (`list[np.ndarray]`): One value per prompt for each run, shape (P,) each, at least `least` and at most
            1.
    """
    if not values:
        return None
    means = [float(run_values.mean()) for run_values in values]
    intervals = [t_interval(means)[1:]] if len(means) > 1 else []
    if same:
        intervals.append(prompt_interval(np.mean(values, axis=0), least))
    lows, highs = zip(*intervals, strict=True)
    low, high = np.clip([np.min(lows), np.max(highs)], least, 1.0)  # a t-interval may leave the possible range
    return Estimate(float(np.mean(means)), float(low), float(high))


def mcnemar_p_value(a, b) -> float:
    """
    Return the two-sided p-value of the exact McNemar test (McNemar 1947) of correct or wrong, shape (P,) each in the
    same order: among the pairs that differ, is one side correct more often than a fair coin? 1 if no pair differs.
    """
    a_only = int(np.greater(a, b).sum())
    differing = int(np.not_equal(a, b).sum())
    return float(stats.binomtest(a_only, differing).pvalue) if differing else 1.0


def paired_p_value(differences) -> float:
    """
    Return the two-sided p-value that a mean difference is 0, from one value per run and prompt, shape (S, P), each
    from -1 to 1: Student's t-test over prompts, averaged over runs; with several runs, the larger p of that and of a
    t-test over runs.

    If all prompts agree, which leaves a t-test no spread, it is the level at which the interval of
    [`paired_difference`] ends at 0. That interval is wider than the test's with few prompts. NaN with fewer than 20.
    """
    differences = np.asarray(differences, dtype=float)
    over_prompts = differences.mean(axis=0)
    if len(over_prompts) < MIN_PROMPTS:
        return math.nan
    if _is_constant(over_prompts):
        mean, standard_error = _adjusted(over_prompts, -1.0)
        p_value = 2 * float(stats.norm.sf(abs(mean) / standard_error))
    else:
        p_value = float(stats.ttest_1samp(over_prompts, 0.0).pvalue)
    if len(differences) > 1:
        p_value = max(p_value, _p_value_over_runs(differences.mean(axis=1)))
    return p_value


def _p_value_over_runs(differences: np.ndarray) -> float:
    """Return p of Student's t-test over runs; 1 if no run differs, 0 if all differ by the same amount."""
    if _is_constant(differences):
        return 1.0 if abs(float(differences[0])) < 1e-12 else 0.0
    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def holm(p_values) -> np.ndarray:
    """
    Adjust p-values, shape (M,), for multiple testing (Holm 1979): rejecting those up to x keeps the family-wise error
    rate below x. NaN, for no test, stays NaN and does not count.
    """
    p_values = np.asarray(p_values, dtype=float)
    tested = np.flatnonzero(~np.isnan(p_values))
    order = tested[np.argsort(p_values[tested])]
    stepped = np.maximum.accumulate(p_values[order] * np.arange(len(order), 0, -1))
    adjusted = np.full_like(p_values, np.nan)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted
