"""
Intervals that cover the base, the training seed and the held-out prompt: a hierarchical bootstrap, with the t quantile
of the number of bases.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from trl_prorl.eval.analysis.statistics import NO_INTERVAL, Estimate, fieller_interval


LEVEL = 0.95
POWER = 0.8
RESAMPLES = 4000
SEED = 0
DIGITS = 12  # after the point; what is smaller is rounding, which must not be told from 0
Pair = tuple[int, int]  # base seed, training seed
Weights = Mapping[str, float]  # of arms in a sum, such as `{"B": 1, "A": -1}`


def _weighted_sum(weights: Weights, values: pd.Series | pd.DataFrame) -> Any:
    return sum(weight * values[arm] for arm, weight in weights.items())


def _t_quantile(bases: int) -> float:
    """The factor of a standard error in a 95 % interval over so many bases."""
    return float(stats.t.ppf((1 + LEVEL) / 2, bases - 1))


@dataclass(frozen=True)
class Resampled:
    """
    Means of several arms over the same bases, training seeds and prompts.

    Attributes:
        means (`pd.Series`): By arm, over prompts, over the seeds of a base, over bases.
        replicates (`pd.DataFrame`): The same of each resample, shape (R, arms); a row is of the same bases, seeds and
            prompts.
        by_base (`pd.DataFrame`): The mean on each base, shape (n, arms).
        pairs (`int`): The number of pairs of base and training seed.
    """

    means: pd.Series
    replicates: pd.DataFrame
    by_base: pd.DataFrame
    pairs: int

    @property
    def bases(self) -> int:
        """Their number n."""
        return len(self.by_base)

    def covariance(self, one: Weights, other: Weights) -> float:
        """
        Return the covariance of two weighted sums of arms. Resamples of n values vary too little by the factor
        (n - 1)/n, which is put right.
        """
        if self.bases < 2:
            return math.nan
        first = _weighted_sum(one, self.replicates)
        second = _weighted_sum(other, self.replicates)
        return float(np.cov(first, second, ddof=0)[0, 1]) * self.bases / (self.bases - 1)

    def contrast(self, weights: Weights) -> "Contrast":
        """Return a weighted sum of arms with the standard error of the resamples."""
        value = _weighted_sum(weights, self.means)
        error = float(np.sqrt(np.maximum(0.0, self.covariance(weights, weights))))
        return Contrast(round(value, DIGITS), round(error, DIGITS), self.bases - 1)

    def over_bases(self, weights: Weights) -> "Contrast":
        """Return the same sum with the standard error of n values, one for each base: the ordinary paired t-test."""
        values = _weighted_sum(weights, self.by_base)
        error = float(stats.sem(values)) if self.bases > 1 else math.nan
        return Contrast(round(float(np.mean(values)), DIGITS), round(error, DIGITS), self.bases - 1)

    def ratio(self, above: Weights, below: Weights) -> Estimate:
        """
        Divide one weighted sum by another, with the interval of Fieller: every ratio for which the contrast
        `above - ratio · below` is not told from 0. NaN where `below` is 0 or less.
        """
        top = float(_weighted_sum(above, self.means))
        bottom = float(_weighted_sum(below, self.means))
        if bottom <= 0:
            return Estimate(math.nan, *NO_INTERVAL)
        if self.bases < 2:
            return Estimate(top / bottom, *NO_INTERVAL)
        interval = fieller_interval(
            top,
            bottom,
            self.covariance(above, above),
            self.covariance(below, below),
            self.covariance(above, below),
            _t_quantile(self.bases) ** 2,
        )
        return Estimate(top / bottom, *interval)


@dataclass(frozen=True)
class Contrast:
    """
    A mean or a difference of means.

    Attributes:
        value (`float`): The mean.
        error (`float`): Its standard error; NaN with a single base, and so is all that follows from it.
        freedom (`float`): Its degrees of freedom: the bases less one.
    """

    value: float
    error: float
    freedom: float

    @property
    def estimate(self) -> Estimate:
        """The estimate with its 95 % interval, value ± t · error."""
        half = math.nan
        if self.freedom > 0:
            half = self.error * float(stats.t.ppf((1 + LEVEL) / 2, self.freedom))
        return Estimate(self.value, self.value - half, self.value + half)

    def _tail(self, distance: float, sides: int) -> float:
        """Return p of the t-test of a distance; of a distance of 0 or less 1 where there is no error."""
        if self.error == 0:
            return float(distance <= 0)
        return float(sides * stats.t.sf(distance / self.error, self.freedom))

    @property
    def p_value(self) -> float:
        """Two-sided, of the t-test that it is 0."""
        return self._tail(abs(self.value), 2)

    def equivalence(self, margin: float) -> float:
        """Return p of the two one-sided t-tests that it is at least `margin` away from 0."""
        return self._tail(margin - abs(self.value), 1)

    def smallest(self, tests: int = 1) -> float:
        """
        Return the true difference that is told from 0 in four studies of five, at the strictest level of Holm's
        correction for so many tests.
        """
        quantiles = stats.t.ppf([1 - (1 - LEVEL) / 2 / tests, POWER], self.freedom)
        return self.error * float(sum(quantiles))


def mean_over(parts: Sequence[Resampled]) -> Resampled:
    """
    Average several families of tasks, each with the same weight, as one more resampling.

    All have the same pairs and the same resampling `seed`, so that the r-th resample takes the same pairs in all of
    them: a pair shares its seeds across families (the base's first weights, the order of training), and its errors may
    go together. The degrees of freedom stay those of the bases. A `ValueError` if the parts differ in their pairs.
    """
    first = parts[0]
    if any((part.bases, part.pairs) != (first.bases, first.pairs) for part in parts):
        raise ValueError("The parts have different numbers of bases or pairs.")
    count = len(parts)
    return Resampled(
        means=sum(part.means for part in parts) / count,
        replicates=sum(part.replicates for part in parts) / count,
        by_base=sum(part.by_base for part in parts) / count,
        pairs=first.pairs,
    )


class Variances(NamedTuple):
    """Parts of the variance of a difference: of a base, of a prompt, and of what belongs to one of each."""

    base: float
    prompt: float
    noise: float


def variance_parts(values: np.ndarray) -> Variances:
    """Estimate the parts of the variance of values of shape (bases, prompts), by an analysis of variance."""
    n, prompts = values.shape
    by_base = values.mean(axis=1)
    by_prompt = values.mean(axis=0)
    residuals = values - by_base[:, None] - by_prompt + values.mean()
    noise = (residuals**2).sum() / ((n - 1) * (prompts - 1))
    base = max(0.0, by_base.var(ddof=1) - noise / prompts)
    prompt = max(0.0, by_prompt.var(ddof=1) - noise / n)
    return Variances(base, prompt, noise)


def simulated_studies(variances: Variances, n: int, prompts: int, studies: int, seed: int) -> np.ndarray:
    """Draw values of shape (studies, n, prompts) around 0 with these variances."""
    draw = np.random.default_rng(seed).normal
    of_base = draw(0, variances.base**0.5, (studies, n, 1))
    of_prompt = draw(0, variances.prompt**0.5, (studies, 1, prompts))
    noise = draw(0, variances.noise**0.5, (studies, n, prompts))
    return of_base + of_prompt + noise


def expected_squares(values: np.ndarray) -> np.ndarray:
    """
    Return the expected square of a resample's mean, for values of shape (studies, n, prompts): its multinomial weights
    of bases and prompts have known moments, so that nothing is drawn.
    """
    _, n, prompts = values.shape
    same_base_and_prompt = (values**2).sum(axis=(1, 2))
    same_base = (values.sum(axis=2) ** 2).sum(axis=1)
    same_prompt = (values.sum(axis=1) ** 2).sum(axis=1)
    any_two = values.sum(axis=(1, 2)) ** 2
    total = (
        same_base_and_prompt
        + (1 - 1 / prompts) * same_base
        + (1 - 1 / n) * same_prompt
        + (1 - 1 / n) * (1 - 1 / prompts) * any_two
    )
    return total / (n * prompts) ** 2


def coverage(values: np.ndarray, studies: int = 2000, seed: int = SEED) -> tuple[float, float]:
    """
    Simulate how often intervals cover the truth.

    Args:
        values (`np.ndarray`): A difference, shape (bases, prompts). The bases and prompts of the simulated studies,
            and their joint noise, vary as here.
        studies (`int`), seed (`int`): How many studies are simulated, and from which seed.

    Returns:
        `tuple[float, float]`: The share of studies in which the registered interval, and in which the t-interval over
        bases covers the truth.
    """
    n, prompts = values.shape
    made = simulated_studies(variance_parts(values), n, prompts, studies, seed)
    means = made.mean(axis=(1, 2))
    registered_error = np.sqrt((expected_squares(made) - means**2) * n / (n - 1))
    error_over_bases = stats.sem(made.mean(axis=2), axis=1)
    quantile = _t_quantile(n)
    registered = float(np.mean(np.abs(means) <= quantile * registered_error))
    over_bases = float(np.mean(np.abs(means) <= quantile * error_over_bases))
    return registered, over_bases


def resample(
    values: Mapping[str, Mapping[Pair, np.ndarray]], resamples: int = RESAMPLES, seed: int = SEED, family: int = 0
) -> Resampled:
    """
    Draw a hierarchical bootstrap, paired: bases are drawn with replacement; of each drawn base, its training seeds;
    and then prompts, once for all runs of a resample, because all runs are held against the same prompts (crossed, not
    nested: the pigeonhole bootstrap of Owen, 2007).

    It errs to the wide side: whatever belongs to one base *and* one prompt, the noise of sampled answers above all, is
    counted three times, and with the factor n/(n - 1) more (a test). Where the bases agree on a difference, this noise
    is all there is, and the interval is up to twice as wide as it need be.

    Args:
        values (`Mapping`): By arm and by (base seed, training seed), one per prompt, shape (P,). Pairs that not all
            arms have are left out.
        resamples (`int`), seed (`int`): R resamples are drawn from the seed.
        family (`int`): The number of a family among those that [`mean_over`] averages: with one seed they draw the
            same pairs, and each its own prompts.

    Raises:
        ValueError: There is no pair that all arms have, or their prompts differ in number.
    """
    by_arm = {arm: pd.Series(of_pairs, dtype=object) for arm, of_pairs in values.items()}
    runs = pd.DataFrame(by_arm).dropna().sort_index()
    if runs.empty:
        raise ValueError(f"{', '.join(values)} have no pair of base seed and training seed in common.")
    # Shape (pairs, P); a ValueError if prompts differ in number.
    arrays = {arm: np.stack(of_pairs).astype(float) for arm, of_pairs in runs.items()}
    by_base = runs.map(np.mean).groupby(level=0).mean()
    sizes = tuple(runs.groupby(level=0).size())
    prompts = next(iter(arrays.values())).shape[1]
    pair_weights, prompt_counts = draw_weights(sizes, prompts, resamples, seed, family)
    # Over prompts first: a matrix product, which leaves a number for each pair and no array of shape (R, P).
    of_pairs = _mean_over_drawn_prompts(np.stack(list(arrays.values())), prompt_counts)
    means = (of_pairs * pair_weights[:, None, :]).sum(axis=2)
    return Resampled(by_base.mean(), pd.DataFrame(means, columns=list(arrays)), by_base, pairs=len(runs))


def _mean_over_drawn_prompts(values: np.ndarray, prompt_counts: np.ndarray) -> np.ndarray:
    """Average values of shape (arms, pairs, P) over the prompts of each resample: shape (R, arms, pairs)."""
    arms, pairs, prompts = values.shape
    rows = values.reshape(arms * pairs, prompts).T
    blocks = [
        prompt_counts[first : first + RESAMPLES].astype(float) @ rows / prompts
        for first in range(0, len(prompt_counts), RESAMPLES)
    ]
    return np.concatenate(blocks).reshape(-1, arms, pairs)


@lru_cache(maxsize=12)
def draw_weights(
    sizes: tuple[int, ...], prompts: int, resamples: int, seed: int, family: int
) -> tuple[np.ndarray, np.ndarray]:
    """
    Draw the weights of the pairs, shape (R, pairs), and how often each prompt is drawn, shape (R, P). `sizes` are the
    numbers of pairs of the bases.
    """
    generator = np.random.default_rng(seed)
    bases = len(sizes)
    times_drawn = generator.multinomial(bases, [1 / bases] * bases, size=resamples)
    pair_weights = []
    for place, size in enumerate(sizes):
        # A base drawn c times has its seeds drawn c times, as often as it has seeds.
        drawn = generator.multinomial(times_drawn[:, place] * size, [1 / size] * size)
        pair_weights.append(drawn / (size * bases))
    if family:
        generator = np.random.default_rng([seed, family])
    prompt_counts = generator.multinomial(prompts, [1 / prompts] * prompts, size=resamples)
    # The draws take longer than all that is made of them, so many are kept, in as few bytes as a count takes.
    return np.hstack(pair_weights), prompt_counts.astype(np.min_scalar_type(prompts))
