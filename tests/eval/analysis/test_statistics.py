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


def test_the_interval_of_solved_and_unsolved_prompts_by_hand():
    # z^2 = 3.8415. 24 of 24: (24 + 1.9207) / 27.8415 = .93101, 1.95996 sqrt(.93101 * .06899 / 27.8415) = .09414.
    assert prompt_interval([1.0] * 24) == pytest.approx((0.93101 - 0.09414, 1.0), abs=1e-5)
    assert prompt_interval([0.0] * 24) == pytest.approx((0.0, 1 - 0.93101 + 0.09414), abs=1e-5)
    # 18 of 60: (18 + 1.9207) / 63.8415 = .31203, 1.95996 sqrt(.31203 * .68797 / 63.8415) = .11365.
    assert prompt_interval([1.0] * 18 + [0.0] * 42) == pytest.approx((0.31203 - 0.11365, 0.31203 + 0.11365), abs=1e-5)


def test_the_interval_of_a_paired_difference_by_hand():
    # 6 prompts gained, 1 lost, 33 alike: (6 - 1) / 42, variance (7 + 2) / 42 - (5 / 42)^2 = .20011, divided by 42.
    trained = [1] * 6 + [0] + [1] * 33
    base = [0] * 6 + [1] + [1] * 33
    half_width = 1.95996 * math.sqrt(0.20011 / 42)
    assert paired_difference(trained, base) == pytest.approx(
        (5 / 40, 5 / 42 - half_width, 5 / 42 + half_width), abs=1e-5
    )


@pytest.mark.parametrize("prompts", [24, 64, 512])
def test_verdicts_are_covered_in_93_percent(prompts):
    """All outcomes of binomial counts, each with its probability; the interval is symmetric in solved and unsolved."""
    counts = np.arange(prompts + 1)
    low, high = np.array([prompt_interval([1.0] * count + [0.0] * (prompts - count)) for count in counts]).T
    for share in np.linspace(0.5, 0.999, 300):
        probabilities = binom.pmf(counts, prompts, share)
        assert probabilities[(low <= share) & (share <= high)].sum() >= 0.93


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_a_failed_sample_in_ten_thousand_changes_no_interval(value):
    """Prompts that nearly agree are no certainty; the interval has the mean inside."""
    agreeing = np.full(20, value)
    nearly = agreeing + np.where(np.arange(20) == 0, 1e-4 if value < 1 else -1e-4, 0.0)
    assert prompt_interval(nearly) == pytest.approx(prompt_interval(agreeing), abs=1e-5)
    assert paired_difference(nearly, 0 * nearly) == pytest.approx(paired_difference(agreeing, 0 * agreeing), abs=1e-4)
    for estimate in ((value, *prompt_interval(agreeing)), paired_difference(agreeing, 0 * agreeing)):
        assert estimate[1] <= estimate[0] <= estimate[2]
        assert estimate[2] - estimate[1] > 0.1


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


@pytest.mark.parametrize("sign", [1, -1])
def test_where_all_prompts_agree_the_p_value_is_the_level_of_the_interval(sign):
    """32 prompts: the least difference whose interval leaves out 0 has a p of 5 %."""
    differences = sign * np.linspace(0.001, 0.3, 300)
    apart = [paired_difference(np.full(32, value), np.zeros(32)).excludes_zero for value in differences]
    assert 0 < sum(apart) < 300
    assert [paired_p_value([np.full(32, value)]) < 0.05 for value in differences] == apart
