import math

import numpy as np
import pytest
from scipy.stats import binom, t, ttest_1samp

from trl_prorl.eval.analysis.passk import draw_sizes
from trl_prorl.eval.analysis.statistics import (
    bootstrap_interval,
    fieller_ratio,
    holm,
    mcnemar,
    paired_bootstrap_difference,
    paired_bootstrap_ratio,
    paired_p_value,
    prediction_interval,
    prompts_and_seeds,
    ratio_interval,
    t_interval,
)


def test_bootstrap_interval_is_near_the_normal_one_and_follows_level_and_seed():
    half_width = 1.96 * 0.5 / math.sqrt(400)
    interval = bootstrap_interval([0.0] * 200 + [1.0] * 200)
    assert interval == pytest.approx((0.5 - half_width, 0.5 + half_width), abs=0.006)
    values = np.random.default_rng(0).random(50)
    low, high = bootstrap_interval(values)
    narrow_low, narrow_high = bootstrap_interval(values, level=0.5)
    assert low < narrow_low < values.mean() < narrow_high < high
    assert bootstrap_interval(values) == (low, high) != bootstrap_interval(values, seed=4)


def test_the_interval_of_verdicts_is_the_binomial_one():
    # Resampled, 18 right of 60 are binomial: quantiles 11 and 25 of 60.
    assert binom.ppf([0.025, 0.975], 60, 0.3).tolist() == [11, 25]
    assert bootstrap_interval([1.0] * 18 + [0.0] * 42, resamples=20_000) == pytest.approx((11 / 60, 25 / 60))


def test_values_that_do_not_vary_are_no_certainty():
    # 1 - 0.05^(1/20) = 0.1391 of the prompts may be otherwise: 0 of 20 right excludes only rates above it.
    assert bootstrap_interval([0.0] * 20) == pytest.approx((0, 0.1391), abs=1e-4)
    assert bootstrap_interval([1.0] * 20) == pytest.approx((1 - 0.1391, 1), abs=1e-4)
    assert bootstrap_interval([0.25] * 20) == pytest.approx((0.25 - 0.25 * 0.1391, 0.25 + 0.75 * 0.1391), abs=1e-4)
    assert bootstrap_interval([0.0] * 20, bounds=(-1.0, 1.0)) == pytest.approx((-0.1391, 0.1391), abs=1e-4)


def test_few_prompts_give_no_interval():
    assert np.isnan(bootstrap_interval(np.arange(19) / 19)).all()
    assert np.isfinite(bootstrap_interval(np.arange(20) / 20)).all()
    difference = paired_bootstrap_difference([1, 0], [0, 0])
    ratio = paired_bootstrap_ratio([1, 0], [1, 1])
    assert (difference.value, ratio.value) == (0.5, 0.5)
    assert np.isnan([*difference[1:], *ratio[1:]]).all()


def test_pairing_removes_what_prompts_share():
    # b is a less 0.1 at every prompt: prompts vary a lot, the difference not at all.
    a = np.random.default_rng(0).random(40)
    difference = paired_bootstrap_difference(a, a - 0.1)
    # 1 - 0.05^(1/40) = 0.0722 of the prompts may be otherwise, from -1 to 1.
    assert difference == pytest.approx((0.1, 0.1 - 1.1 * 0.0722, 0.1 + 0.9 * 0.0722), abs=1e-4)


def test_paired_ratio():
    b = np.random.default_rng(0).random(40)
    # The same share: those prompts could be right on one side alone.
    seen = 0.05 ** (1 / 40)
    mean = b.mean()
    low = 0.9 * mean * seen / (mean * seen + 1 - seen)
    high = (0.9 * mean * seen + 1 - seen) / (mean * seen)
    assert paired_bootstrap_ratio(0.9 * b, b) == pytest.approx((0.9, low, high))
    ratio = paired_bootstrap_ratio([1, 0, 1, 1] * 5, [1, 1, 1, 1] * 5)
    assert ratio.value == 0.75
    assert 0 <= ratio.low < 0.75 < ratio.high <= 1


def test_paired_ratio_without_a_denominator():
    with pytest.raises(ValueError, match="no ratio"):
        paired_bootstrap_ratio([1, 0], [0, 0])
    assert paired_bootstrap_ratio([1] * 20, [1] + [0] * 19).high == math.inf


@pytest.mark.parametrize(
    ("interval", "error"), [(t_interval, 1 / math.sqrt(3)), (prediction_interval, math.sqrt(4 / 3))]
)
def test_intervals_over_seeds_by_hand(interval, error):
    # mean 2, s = 1, t(0.975, 2) = 4.302653; the error is that of the mean of three, or of one more value beside them
    assert interval([1, 2, 3]) == pytest.approx((2, 2 - 4.302653 * error, 2 + 4.302653 * error), rel=1e-6)
    # t(0.75, 1) = 1, and the errors of two values of a spread of √2 are 1 and √3.
    half = 1.0 if interval is t_interval else math.sqrt(3)
    assert interval([0, 2], 0.5) == pytest.approx((1, 1 - half, 1 + half))
    with pytest.raises(ValueError, match="2 seeds"):
        interval([1.0])


def test_mcnemar_by_hand():
    # 7 pairs differ, 6 of them for a: 2 (C(7,6) + C(7,7)) / 2^7 = 16 / 128. Pairs that agree do not count.
    a = [1] * 6 + [0] + [1] * 5 + [0] * 3
    b = [0] * 6 + [1] + [1] * 5 + [0] * 3
    assert mcnemar(a, b) == (6, 1, pytest.approx(1 / 8))
    assert mcnemar(b, a) == (1, 6, pytest.approx(1 / 8))
    assert mcnemar([True, False], [True, False]) == (0, 0, 1.0)


@pytest.mark.parametrize(
    ("paired", "a", "b", "message"),
    [
        (mcnemar, [2, 0], [1, 0], "booleans"),
        (mcnemar, [1, 0], [1], "same prompts"),
        (paired_bootstrap_difference, [1, 0, 1], [1, 0], "same prompts"),
    ],
)
def test_pairs_are_of_the_same_prompts(paired, a, b, message):
    with pytest.raises(ValueError, match=message):
        paired(a, b)


def test_holm_by_hand():
    # Smallest first: 0.01 * 4, 0.02 * 3, 0.022 * 2 raised to the one before it, 0.5 * 1.
    np.testing.assert_allclose(holm([0.022, 0.01, 0.5, 0.02]), [0.06, 0.04, 0.5, 0.06])
    np.testing.assert_allclose(holm([0.9, 0.8]), [1.0, 1.0])
    # What was not tested does not count.
    np.testing.assert_allclose(holm([math.nan, 0.02, 0.04]), [math.nan, 0.04, 0.04])


def test_the_p_value_of_a_paired_difference_by_hand():
    # 1 and 0, 20 times each: mean 1/2, variance 10/39, standard error 1/sqrt(156).
    values = [1.0, 0.0] * 20
    assert paired_p_value([values]) == pytest.approx(2 * t.sf(0.5 * math.sqrt(156), 39))
    assert paired_p_value([[-value for value in values]]) == paired_p_value([values])
    # Two runs whose prompts agree on 1/2, and whose means, 1/4 and 3/4, do not: t = 2 with one degree of freedom.
    runs = [[0.5 * value for value in values], [1 - 0.5 * value for value in values]]
    assert paired_p_value(runs) == pytest.approx(ttest_1samp([0.25, 0.75], 0.0).pvalue)
    assert math.isnan(paired_p_value([values[:19]]))  # as few prompts have no interval


def test_no_difference_at_any_prompt_is_no_evidence():
    assert paired_p_value(np.zeros((1, 30))) == paired_p_value(np.zeros((2, 30))) == 1.0


@pytest.mark.parametrize("prompts", [20, 64])
@pytest.mark.parametrize("sign", [1, -1])
def test_where_all_prompts_agree_the_p_value_is_the_level_of_the_interval(prompts, sign):
    """The rule of three: with the least difference whose interval leaves out 0, p is 0.05."""
    least = 0.05 ** (-1 / prompts) - 1
    for factor, apart in ((1.001, True), (0.999, False)):
        values = np.full(prompts, sign * factor * least)
        assert paired_bootstrap_difference(values, np.zeros(prompts)).excludes_zero is apart
        assert (paired_p_value([values]) < 0.05) is apart
        assert paired_p_value([values]) == pytest.approx(0.05, rel=0.01)


def test_fieller_by_hand():
    # b = 1, 3 and a = 2, 2: means 2 and 2, standard error of b 1, a does not vary, t(0.975, 1) = 12.706.
    assert fieller_ratio([1, 3], [2, 2], paired=True) == pytest.approx((1.0, 0.0, 1 + 12.7062 / 2), rel=1e-5)
    # b = 4, 5, 6 and a = 5, 4, 6: means 5, 5; variances of the means 1/3, covariance 1/6; t(0.975, 2)^2 = 18.5128.
    # 18.8291 r^2 - 2 * 21.9145 r + 18.8291 <= 0: r = 1.16387 -+ sqrt(1.16387^2 - 1).
    estimate = fieller_ratio([4, 5, 6], [5, 4, 6], paired=True)
    assert estimate == pytest.approx((1.0, 0.56839, 1.75935), rel=1e-4)
    # Unpaired the covariance is 0: 18.8291 r^2 - 50 r + 18.8291 <= 0.
    assert fieller_ratio([4, 5, 6], [5, 4, 6], paired=False) == pytest.approx((1.0, 0.45430, 2.20118), rel=1e-4)


def test_fieller_where_a_is_not_told_from_nothing():
    # a = 0, 2: 1 - 161.45 * 1 < 0. b = 1, 1: -160.45 r^2 - 2 r + 1 <= 0 from r = (-2 + sqrt(4 + 641.79)) / 320.89.
    value, low, high = fieller_ratio([1, 1], [0, 2], paired=True)
    assert (value, high) == (1.0, math.inf)
    assert low == pytest.approx(0.07296, rel=1e-3)
    # Nor is b: nothing is excluded.
    assert fieller_ratio([2, 0], [0, 2], paired=True) == (1.0, 0.0, math.inf)
    assert fieller_ratio([3], [2], paired=True) == (1.5, 0.0, math.inf)
    assert fieller_ratio([0, 0], [2, 2], paired=True) == (0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="mean of a is 0"):
        fieller_ratio([1, 2], [0, 0], paired=True)


def test_bootstrap_of_a_ratio():
    """The mean is over tokens: prompts in lockstep leave no spread, whatever their lengths."""
    sums = np.tile([1.0, 30.0], 10)
    tokens = np.tile([10.0, 300.0], 10)
    assert ratio_interval(sums, tokens) == pytest.approx((0.1, 0.1))
    # 20 coins of 0 and 3: mean 1.5, standard error 1.5 / sqrt(20).
    low, high = ratio_interval(np.tile([0.0, 30.0], 10), np.full(20, 10.0))
    assert (low, high) == pytest.approx((1.5 - 1.96 * 0.335, 1.5 + 1.96 * 0.335), abs=0.1)
    assert np.isnan(ratio_interval(sums[:19], tokens[:19])).all()


def test_hull_of_prompts_and_seeds():
    coins = np.array([0.0, 1.0] * 20)
    together = prompts_and_seeds([coins, coins], same=True)
    assert together.low < 0.4 < 0.6 < together.high  # seeds agree to the last digit: the prompts speak
    assert prompts_and_seeds([coins, coins], same=False)[1:] == (0.5, 0.5)
    flat = prompts_and_seeds([np.full(40, 0.4), np.full(40, 0.6)], same=True)
    assert flat.high == pytest.approx(0.5 + 12.706 * 0.1, abs=1e-3)  # prompts agree: the seeds speak
    assert prompts_and_seeds([], same=True) is None


@pytest.mark.parametrize(("n", "ks"), [(1, [1]), (12, [1, 2, 4, 8, 12]), (16, [1, 2, 4, 8, 16])])
def test_sizes_of_a_draw(n, ks):
    assert draw_sizes(n) == ks
    assert n != 12 or draw_sizes(n, evaluated=(1, 3, 32)) == [1, 2, 3, 4, 8, 12]
