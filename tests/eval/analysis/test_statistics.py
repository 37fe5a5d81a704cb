import math

import numpy as np
import pytest
from scipy.stats import binom, t, ttest_1samp

from trl_prorl.eval.analysis.statistics import (
    holm,
    mcnemar_p_value,
    paired_difference,
    paired_p_value,
    pass_at_k_bound,
    pass_at_k_per_prompt,
    prompt_interval,
    prompts_and_seeds,
    ratio_interval,
    t_interval,
)


def test_the_interval_of_verdicts_is_the_binomial_one():
    # Resampled, 18 right of 60 are binomial: quantiles 11 and 25 of 60.
    assert binom.ppf([0.025, 0.975], 60, 0.3).tolist() == [11, 25]
    assert prompt_interval([1.0] * 18 + [0.0] * 42) == pytest.approx((11 / 60, 25 / 60))


def test_values_that_do_not_vary_are_no_certainty():
    # 1 - 0.05^(1/20) = 0.1391 of the prompts may be otherwise: 0 of 20 right excludes only rates above it.
    assert prompt_interval([0.0] * 20) == pytest.approx((0, 0.1391), abs=1e-4)
    assert prompt_interval([0.25] * 20) == pytest.approx((0.25 - 0.25 * 0.1391, 0.25 + 0.75 * 0.1391), abs=1e-4)
    # b is a less 0.1 at every prompt: prompts vary a lot, the difference not at all. It may be from -1 to 1.
    a = np.random.default_rng(0).random(40)
    assert paired_difference(a, a - 0.1) == pytest.approx((0.1, 0.1 - 1.1 * 0.0722, 0.1 + 0.9 * 0.0722), abs=1e-4)


@pytest.mark.parametrize("prompts, least, most", [(64, 0.80, 0.91), (128, 0.84, 0.97)])
def test_intervals_are_narrow_if_few_prompts_can_be_solved(prompts, least, most):
    """docs/evaluation.md has these shares: 5 % of the prompts can be solved, always or at rates that are drawn."""
    source = np.random.default_rng(0)
    rates = {1.0: np.ones, 0.5: source.random, 0.2: lambda size: source.beta(1, 4, size)}
    for mean, draw in rates.items():
        covered = 0
        for _ in range(1000):
            solvable = source.random(prompts) < 0.05
            correct = source.binomial(16, np.where(solvable, draw(prompts), 0.0))
            low, high = prompt_interval(correct / 16)
            covered += low <= 0.05 * mean <= high
        assert least < covered / 1000 < most


def test_the_bound_of_pass_at_k_by_hand():
    # 1 and 3 right of 4: two samples both fail in (C(3,2) + C(1,2)) / (2 C(4,2)) = 3/12 = 1/4. Mean rate 1/2.
    assert pass_at_k_bound([1, 3], 4, 1) == 0.5
    assert pass_at_k_bound([1, 3], 4, 2) == pytest.approx(3 / 4)
    assert pass_at_k_bound([1, 3], 4, 4) == pytest.approx(1 - (1 / 4) ** 2)
    # Rates 1/4 and 3/4 of very many samples: mean 1/2, variance 1/16, so 1 - (1/4 + 1/16)^(k/2).
    exact = pass_at_k_bound([250_000, 750_000], 1_000_000, 4)
    assert exact == pytest.approx(1 - (5 / 16) ** 2, abs=1e-5)
    assert exact > pass_at_k_per_prompt([250_000, 750_000], 1_000_000, 4).mean()
    # Prompts that are alike reach it.
    alike = pass_at_k_per_prompt([300_000] * 3, 1_000_000, 8).mean()
    assert pass_at_k_bound([300_000] * 3, 1_000_000, 8) == pytest.approx(alike, abs=1e-5)


def test_few_prompts_give_no_interval():
    assert np.isnan(prompt_interval(np.arange(19) / 19)).all()
    assert np.isfinite(prompt_interval(np.arange(20) / 20)).all()
    pair = np.array([1.0, 0.0]), np.array([1.0, 1.0])
    found = paired_difference(*pair)
    assert found.value == -0.5
    assert np.isnan(found[1:]).all()
    assert np.isnan(ratio_interval(*pair)).all()


def test_a_ratio_over_tokens():
    """The mean is over tokens: prompts in lockstep leave no spread, whatever their lengths."""
    assert ratio_interval(np.tile([1.0, 30.0], 10), np.tile([10.0, 300.0], 10)) == pytest.approx((0.1, 0.1))
    # 20 coins of 0 and 3: mean 1.5, standard error 1.5 / sqrt(20).
    found = ratio_interval(np.tile([0.0, 30.0], 10), np.full(20, 10.0))
    assert found == pytest.approx((1.5 - 1.96 * 0.335, 1.5 + 1.96 * 0.335), abs=0.1)
    assert ratio_interval(np.ones(20), np.array([1.0] + [0.0] * 19))[1] == math.inf


def test_intervals_over_seeds_by_hand():
    # mean 2, s = 1, t(0.975, 2) = 4.302653; t(0.75, 1) = 1
    assert t_interval([1, 2, 3]) == pytest.approx((2, 2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3)))
    assert t_interval([0, 2], 0.5) == pytest.approx((1, 0, 2), abs=1e-9)
    with pytest.raises(ValueError, match="2 seeds"):
        t_interval([1.0])


def test_hull_of_prompts_and_seeds():
    coins = np.array([0.0, 1.0] * 20)
    together = prompts_and_seeds([coins, coins], same=True)
    assert together.low < 0.4 < 0.6 < together.high  # seeds agree to the last digit: the prompts speak
    assert prompts_and_seeds([coins, coins], same=False)[1:] == (0.5, 0.5)
    flat = prompts_and_seeds([np.full(40, 0.49), np.full(40, 0.51)], same=True)
    assert flat.high == pytest.approx(0.5 + 12.706 * 0.01, abs=1e-3)  # prompts agree: the seeds speak
    assert prompts_and_seeds([np.zeros(40), np.ones(40)], same=True) == (0.5, 0.0, 1.0)  # a share is within 0 and 1


def test_mcnemar_by_hand():
    # 7 pairs differ, 6 of them for a: 2 (C(7,6) + C(7,7)) / 2^7 = 16 / 128. Pairs that agree do not count.
    a = [1] * 6 + [0] + [1] * 5 + [0] * 3
    b = [0] * 6 + [1] + [1] * 5 + [0] * 3
    assert mcnemar_p_value(a, b) == mcnemar_p_value(b, a) == pytest.approx(1 / 8)
    assert mcnemar_p_value(a, a) == 1.0


def test_holm_by_hand():
    # Smallest first: 0.01 * 4, 0.02 * 3, 0.022 * 2 raised to the one before it, 0.5 * 1. What was not tested, or is
    # above 1, does not count.
    np.testing.assert_allclose(holm([0.022, math.nan, 0.01, 0.5, 0.02]), [0.06, math.nan, 0.04, 0.5, 0.06])
    np.testing.assert_allclose(holm([0.9, 0.8]), [1.0, 1.0])


def test_the_p_value_of_a_paired_difference_by_hand():
    # 1 and 0, 20 times each: mean 1/2, variance 10/39, standard error 1/sqrt(156).
    values = [1.0, 0.0] * 20
    assert paired_p_value([values]) == pytest.approx(2 * t.sf(0.5 * math.sqrt(156), 39))
    # Two runs whose prompts agree on 1/2, and whose means, 1/4 and 3/4, do not: t = 2 with one degree of freedom.
    runs = [[0.5 * value for value in values], [1 - 0.5 * value for value in values]]
    assert paired_p_value(runs) == pytest.approx(ttest_1samp([0.25, 0.75], 0.0).pvalue)
    assert math.isnan(paired_p_value([values[:19]]))  # as few prompts have no interval
    assert paired_p_value(np.zeros((1, 30))) == paired_p_value(np.zeros((2, 30))) == 1.0


@pytest.mark.parametrize("prompts", [20, 64])
@pytest.mark.parametrize("sign", [1, -1])
def test_where_all_prompts_agree_the_p_value_is_the_level_of_the_interval(prompts, sign):
    """The rule of three: with the least difference whose interval leaves out 0, p is 0.05."""
    least = 0.05 ** (-1 / prompts) - 1
    for factor, apart in ((1.001, True), (0.999, False)):
        values = np.full(prompts, sign * factor * least)
        assert paired_difference(values, np.zeros(prompts)).excludes_zero is apart
        assert (paired_p_value([values]) < 0.05) is apart
        assert paired_p_value([values]) == pytest.approx(0.05, rel=0.01)
