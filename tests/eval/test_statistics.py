import math

import numpy as np
import pytest

from eval.metrics.pass_at_k import pass_at_k as metric_module
from eval.statistics import (
    bootstrap_interval,
    paired_bootstrap_difference,
    paired_bootstrap_ratio,
    pass_at_k,
    pass_at_k_per_prompt,
    t_interval,
)


def test_one_estimator():
    assert pass_at_k is metric_module.pass_at_k
    np.testing.assert_allclose(pass_at_k_per_prompt([0, 1, 4], n=4, k=2), [0, 1 / 2, 1])


def test_bootstrap_interval_is_near_the_normal_one():
    values = [0.0] * 200 + [1.0] * 200
    half_width = 1.96 * 0.5 / math.sqrt(400)
    low, high = bootstrap_interval(values)
    assert low == pytest.approx(0.5 - half_width, abs=0.006)
    assert high == pytest.approx(0.5 + half_width, abs=0.006)


def test_bootstrap_interval_follows_level_and_seed():
    values = np.random.default_rng(0).random(50)
    low, high = bootstrap_interval(values)
    narrow_low, narrow_high = bootstrap_interval(values, level=0.5)
    assert low < narrow_low < values.mean() < narrow_high < high
    assert bootstrap_interval(values, seed=3) == bootstrap_interval(values, seed=3)
    assert bootstrap_interval(values, seed=3) != bootstrap_interval(values, seed=4)


def test_bootstrap_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(300):
        low, high = bootstrap_interval(rng.random(60) < 0.3, resamples=400, seed=trial)
        hits += low <= 0.3 <= high
    # 95 % of 300 is 285; the percentile interval is slightly liberal at 60 prompts, the binomial spread is 4.
    assert 0.90 <= hits / 300 <= 0.99


def test_values_that_do_not_vary_have_no_width():
    assert bootstrap_interval([0.25] * 10) == (0.25, 0.25)


def test_one_prompt_is_refused():
    with pytest.raises(ValueError, match="at least 2"):
        bootstrap_interval([1.0])


def test_pairing_removes_what_prompts_share():
    # b is a less 0.1 at every prompt: prompts vary a lot, the difference not at all.
    a = np.random.default_rng(0).random(40)
    difference = paired_bootstrap_difference(a, a - 0.1)
    assert difference == pytest.approx((0.1, 0.1, 0.1))


def test_paired_ratio():
    b = np.random.default_rng(0).random(40)
    assert paired_bootstrap_ratio(0.9 * b, b) == pytest.approx((0.9, 0.9, 0.9))
    ratio = paired_bootstrap_ratio([1, 0, 1, 1], [1, 1, 1, 1])
    assert ratio.value == 0.75
    assert 0 <= ratio.low < 0.75 < ratio.high <= 1


def test_paired_ratio_without_a_denominator():
    with pytest.raises(ValueError, match="no ratio"):
        paired_bootstrap_ratio([1, 0], [0, 0])
    assert paired_bootstrap_ratio([1, 1], [1, 0]).high == math.inf


def test_pairs_need_the_same_prompts():
    with pytest.raises(ValueError, match="same prompts"):
        paired_bootstrap_difference([1, 0, 1], [1, 0])


def test_t_interval_by_hand():
    # mean 2, standard error 1/sqrt(3), t(0.975, 2) = 4.302653
    half_width = 4.302653 / math.sqrt(3)
    assert t_interval([1, 2, 3]) == pytest.approx((2, 2 - half_width, 2 + half_width), rel=1e-6)
    with pytest.raises(ValueError, match="2 seeds"):
        t_interval([1.0])
