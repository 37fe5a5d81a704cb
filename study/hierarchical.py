"""
Intervals that cover the base, the training seed and the held-out prompt: a hierarchical bootstrap, with the t quantile
of the number of bases.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from eval.analysis.statistics import NO_INTERVAL, Estimate, fieller_interval


LEVEL, POWER = 0.95, 0.8
RESAMPLES, SEED = 4000, 0
DIGITS = 12  # after the point; what is smaller is rounding, which must not be told from 0
Pair = tuple[int, int]  # base seed, training seed
Weights = Mapping[str, float]  # of arms in a sum, such as `{"B": 1, "A": -1}`


def _weighted(weights: Weights, of: pd.Series | pd.DataFrame) -> Any:
    return sum(weight * of[arm] for arm, weight in weights.items())


@dataclass(frozen=True)
class Resampled:
    """
    Means of several arms over the same bases, training seeds and prompts: `means` by arm, over prompts, over the seeds
    of a base, over bases; `replicates`, the same of each resample, shape (R, arms), a row being of the same bases,
    seeds and prompts; `by_base`, the mean on each base, shape (n, arms); the number of pairs.
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
        """Of two weighted sums of arms. Resamples of n values vary too little by the factor (n - 1)/n: put right."""
        if self.bases < 2:
            return math.nan
        sums = [_weighted(each, self.replicates) for each in (one, other)]
        return float(np.cov(*sums, ddof=0)[0, 1]) * self.bases / (self.bases - 1)

    def contrast(self, weights: Weights) -> "Contrast":
        """A weighted sum of arms."""
        error = float(np.sqrt(np.maximum(0.0, self.covariance(weights, weights))))
        return Contrast(round(_weighted(weights, self.means), DIGITS), round(error, DIGITS), self.bases - 1)

    def over_bases(self, weights: Weights) -> "Contrast":
        """The same sum with the standard error of n values, one for each base: the ordinary paired t-test."""
        values = _weighted(weights, self.by_base)
        error = float(stats.sem(values)) if self.bases > 1 else math.nan
        return Contrast(round(float(np.mean(values)), DIGITS), round(error, DIGITS), self.bases - 1)

    def ratio(self, above: Weights, below: Weights) -> Estimate:
        """
        One weighted sum by another, with the interval of Fieller: every ratio for which the contrast
        `above - ratio · below` is not told from 0. NaN where `below` is 0 or less.
        """
        top, bottom = (float(_weighted(each, self.means)) for each in (above, below))
        if bottom <= 0:
            return Estimate(math.nan, *NO_INTERVAL)
        if self.bases < 2:
            return Estimate(top / bottom, *NO_INTERVAL)
        variances = (self.covariance(*pair) for pair in ((above, above), (below, below), (above, below)))
        squared_t = stats.t.ppf((1 + LEVEL) / 2, self.bases - 1) ** 2
        return Estimate(top / bottom, *fieller_interval(top, bottom, *variances, squared_t))


@dataclass(frozen=True)
class Contrast:
    """A mean or a difference of means, its standard error, and its degrees of freedom: the bases less one. With a
    single base the error is NaN, and so is all that follows from it."""

    value: float
    error: float
    freedom: float

    @property
    def estimate(self) -> Estimate:
        """With its 95 % interval, value ± t · error."""
        half = self.error * float(stats.t.ppf((1 + LEVEL) / 2, self.freedom)) if self.freedom > 0 else math.nan
        return Estimate(self.value, self.value - half, self.value + half)

    def _tail(self, distance: float, sides: int) -> float:
        """p of the t-test of a distance; of a distance of 0 or less 1 where there is no error."""
        if self.error == 0:
            return float(distance <= 0)
        return float(sides * stats.t.sf(distance / self.error, self.freedom))

    @property
    def p_value(self) -> float:
        """Two-sided, of the t-test that it is 0."""
        return self._tail(abs(self.value), 2)

    def equivalence(self, margin: float) -> float:
        """p of the two one-sided t-tests that it is at least `margin` away from 0."""
        return self._tail(margin - abs(self.value), 1)

    def smallest(self, tests: int = 1) -> float:
        """
        The true difference that is told from 0 in four studies of five, at the strictest level of Holm's correction
        for so many tests.
        """
        return self.error * float(sum(stats.t.ppf([1 - (1 - LEVEL) / 2 / tests, POWER], self.freedom)))


def mean_over(parts: Sequence[Resampled]) -> Resampled:
    """
    The mean of several families of tasks, each with the same weight, as one more resampling. All have the same pairs
    and the same resampling `seed`, so that the r-th resample takes the same pairs in all of them: a pair shares its
    seeds across families (the base's first weights, the order of training), and its errors may go together. The
    degrees of freedom stay those of the bases. A `ValueError` if the parts differ in their pairs.
    """
    first, *others = parts
    if any((one.bases, one.pairs) != (first.bases, first.pairs) for one in others):
        raise ValueError("The parts have different numbers of bases or pairs.")
    every = zip(*((one.means, one.replicates, one.by_base) for one in parts), strict=True)
    return Resampled(*(sum(each) / len(parts) for each in every), first.pairs)


def coverage(values: np.ndarray, studies: int = 2000, seed: int = SEED) -> tuple[float, float]:
    """
    How often the registered interval and the t-interval over bases cover the truth, in simulated studies whose bases,
    prompts and their joint noise vary as in a difference of shape (bases, prompts).
    """
    (n, prompts), base, prompt = values.shape, values.mean(axis=1), values.mean(axis=0)
    noise = ((values - base[:, None] - prompt + values.mean()) ** 2).sum() / ((n - 1) * (prompts - 1))
    of_base, of_prompt = (max(0.0, base.var(ddof=1) - noise / prompts), max(0.0, prompt.var(ddof=1) - noise / n))
    draw = np.random.default_rng(seed).normal
    shapes = ((of_base, (n, 1)), (of_prompt, (1, prompts)), (noise, (n, prompts)))
    made = sum(draw(0, variance**0.5, (studies, *shape)) for variance, shape in shapes)
    means, half = made.mean(axis=(1, 2)), stats.t.ppf((1 + LEVEL) / 2, n - 1)
    # The variance of a resample's mean, of the multinomial weights of bases and prompts, in closed form.
    squares = [(made**2).sum((1, 2)), (made.sum(2) ** 2).sum(1), (made.sum(1) ** 2).sum(1), made.sum((1, 2)) ** 2]
    shares = (1, 1 - 1 / prompts, 1 - 1 / n, (1 - 1 / n) * (1 - 1 / prompts))
    expected = sum(share * square for share, square in zip(shares, squares, strict=True)) / (n * prompts) ** 2
    errors = (np.sqrt((expected - means**2) * n / (n - 1)), stats.sem(made.mean(axis=2), axis=1))
    registered, alone = (float(np.mean(np.abs(means) <= half * error)) for error in errors)
    return registered, alone


def resample(
    values: Mapping[str, Mapping[Pair, np.ndarray]], resamples: int = RESAMPLES, seed: int = SEED, family: int = 0
) -> Resampled:
    r"""
    Hierarchical bootstrap, paired: bases are drawn with replacement; of each drawn base, its training seeds; and then
    prompts, once for all runs of a resample, because all runs are held against the same prompts (crossed, not nested:
    the pigeonhole bootstrap of Owen, 2007). It errs to the wide side: whatever belongs to one base *and* one prompt,
    the noise of sampled answers above all, is counted three times, and with the factor n/(n - 1) more (a test). Where
    the bases agree on a difference, this noise is all there is, and the interval is up to twice as wide as it need be.

    `values` are by arm and by (base seed, training seed), one per prompt, shape (P,); pairs that not all arms have are
    left out. R `resamples` are drawn from `seed`. Families that [`mean_over`] averages have numbers, `family`: with
    one seed they draw the same pairs, and each its own prompts. Raises `ValueError`: there is no pair that all arms
    have, or their prompts differ in number.
    """
    runs = pd.DataFrame({arm: pd.Series(of, dtype=object) for arm, of in values.items()}).dropna().sort_index()
    if runs.empty:
        raise ValueError(f"{', '.join(values)} have no pair of base seed and training seed in common.")
    arrays = {arm: np.stack(of).astype(float) for arm, of in runs.items()}  # a ValueError if prompts differ in number
    by_base = runs.map(np.mean).groupby(level=0).mean()
    sizes = tuple(runs.groupby(level=0).size())
    weights, prompts = _drawn(sizes, next(iter(arrays.values())).shape[1], resamples, seed, family)
    replicates = {arm: ((weights @ array) * prompts).sum(axis=1) for arm, array in arrays.items()}
    return Resampled(by_base.mean(), pd.DataFrame(replicates), by_base, pairs=len(runs))


@lru_cache(maxsize=4)
def _drawn(
    sizes: tuple[int, ...], count: int, resamples: int, seed: int, family: int
) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the pairs, shape (R, pairs), and of the prompts, shape (R, P); a base has `size` pairs."""
    generator = np.random.default_rng(seed)
    drawn = generator.multinomial(len(sizes), [1 / len(sizes)] * len(sizes), size=resamples)
    weights = [
        # A base drawn c times has its seeds drawn c times, as often as it has seeds.
        generator.multinomial(drawn[:, place] * size, [1 / size] * size) / (size * len(sizes))
        for place, size in enumerate(sizes)
    ]
    if family:
        generator = np.random.default_rng([seed, family])
    return np.hstack(weights), generator.multinomial(count, [1 / count] * count, size=resamples) / count
