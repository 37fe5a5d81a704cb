import math

import numpy as np
import pytest

from trl_prorl.eval.analysis import fitted_rate as trajectory
from trl_prorl.eval.analysis.fitted_rate import check_rate, fit_rate, rates, standard_errors


STEPS = np.array([0.0, 50, 100, 150, 200, 300, 400, 500])


def draw_scores(curve, prompts, steps=STEPS, seed=0, n=16):
    """n samples of prompts whose difficulty stays with them: what each leaves unsolved is its share of the curve's."""
    rng = np.random.default_rng(seed)
    difficulty = rng.beta(2, 2, size=prompts) * 2  # mean 1
    p = np.clip(1 - np.outer([1 - curve(step) for step in steps], difficulty), 0, 1)
    return rng.binomial(n, p) / n


def test_rates_are_those_of_the_checkpoints_from_base_at_0(passk_result):
    # A quarter, then half of what is unsolved is left: 16 samples, of which k = 16 draws all.
    checkpoints = [(30, [14, 15]), (10, [8, 12]), (20, [12, 14])]  # what a constant rate leaves, in any order
    points = [{"step": step, "correct": counts * 20} for step, counts in checkpoints]
    result = passk_result([0, 8] * 20, [16] * 40, n=16, k=[1, 16], checkpoints=points)
    (one,) = rates(result)  # of all 16 samples, one is right at every prompt of every checkpoint: any high rate fits
    assert (one.k, one.p0, one.last) == (1, 0.25, 0.90625)
    assert one.alpha == pytest.approx((math.log(2) / 10,) * 3, rel=1e-3)
    assert one.holds
    np.testing.assert_allclose(one.curve(np.array([0, 10, 30])), [0.25, 0.625, 0.90625], atol=1e-3)
    assert rates({**result, "checkpoints": points[:2]}) == []
    assert rates({**result, "base": {"correct": [16] * 40}}) == []  # no unsolved prompt


@pytest.mark.parametrize(
    ("steps", "values", "errors", "alpha", "close", "residuals"),
    [
        (STEPS, 1 - 0.75 * np.exp(-STEPS / 250), [0.02] * 8, 1 / 250, 1e-6, 0),
        # Residuals r with sum of r t = 0 leave alpha at 0: 0.1 + 2 * 0.1 - 3 * 0.1. The sum is 3 (0.1 / 0.05)^2.
        ([0, 1, 2, 3], [0.5, 0.6, 0.6, 0.4], [0.05] * 4, 0, 1e-6, 12),
        ([0, 10, 20, 30], [0.5, 0.4, 0.28, 0.136], [0.1] * 4, -math.log(1.2) / 10, 1e-6, 0),  # it falls
        # Two rates in the data; the point known better decides.
        ([0, 1, 2], [0.0, 1 - math.exp(-1.0), 1 - math.exp(-4.0)], [1, 1e-4, 1], 1, 1e-3, None),
        ([0, 1, 2], [0.0, 1 - math.exp(-1.0), 1 - math.exp(-4.0)], [1, 1, 1e-4], 2, 1e-2, None),
    ],
)
def test_fits_by_hand(steps, values, errors, alpha, close, residuals):
    found = fit_rate(*(np.array(numbers, dtype=float) for numbers in (steps, values, errors)))
    assert found[0] == pytest.approx(alpha, rel=close, abs=1e-6)
    if residuals is not None:
        assert found[1] == pytest.approx(residuals, rel=2e-4, abs=1e-8)


def test_prompts_stay_together_over_steps():
    # Each prompt follows the curve from its own start, so any choice of prompts does: no residual, no doubt about
    # alpha.
    starts = np.random.default_rng(0).uniform(0, 0.9, size=40)
    rate = check_rate(1, STEPS, 1 - np.outer(np.exp(-STEPS / 250), 1 - starts))
    assert rate.alpha == pytest.approx((1 / 250,) * 3, rel=1e-5)
    assert rate.p_value == 1


def test_fewer_than_20_prompts_give_no_rate_as_they_give_no_interval():
    scores = draw_scores(lambda step: 1 - 0.5 * math.exp(-step / 250), 20)
    assert check_rate(1, STEPS, scores) is not None
    assert check_rate(1, STEPS, scores[:, :19]) is None


def test_a_curve_that_holds_is_seldom_denied_and_a_plateau_below_one_is_seen(monkeypatch):
    monkeypatch.setattr(trajectory, "RESAMPLES", 60)

    def constant_rate(step):
        return 1 - 0.5 * math.exp(-step / 250)

    found = [check_rate(1, STEPS, draw_scores(constant_rate, 100, seed=1000 + i)) for i in range(40)]
    assert sum(rate.p_value <= 0.05 for rate in found) <= 5  # 2 expected
    assert np.mean([rate.p_value for rate in found]) == pytest.approx(0.5, abs=0.15)
    assert sum(rate.alpha.low <= 1 / 250 <= rate.alpha.high for rate in found) >= 34  # 38 expected
    steps = np.linspace(0, 500, 21)
    rate = check_rate(1, steps, draw_scores(lambda step: 0.7 - 0.2 * math.exp(-step / 60), 300, steps))
    assert rate.p_value == pytest.approx(1 / 61)  # no resample departs as far
    assert not rate.holds


def test_where_all_prompts_agree_the_error_is_half_a_prompt():
    half = 0.5 / 50
    assert standard_errors(np.ones((1, 50))) == pytest.approx(math.sqrt(half * (1 - half) / 50))
    # 0 and 1 in equal parts: sqrt(1/4 * 4/3) / sqrt(4)
    assert standard_errors(np.array([[0, 1, 0, 1]])) == pytest.approx(math.sqrt(1 / 3) / 2)
