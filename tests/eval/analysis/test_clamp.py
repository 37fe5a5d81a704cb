import math

import numpy as np
import pytest

from eval.analysis.resets import gain_after_clamp, gain_since, stalled_at


STEPS = np.arange(1, 101)


def rising_until(step, rate=0.005):
    return np.minimum(STEPS, step) * rate


def test_a_run_has_stalled_where_nothing_later_is_better_by_more_than_the_least():
    # 0.005 a step up to step 50, then flat at 0.25. Means over 4 steps: 0.2425 at 50, 0.25 from 53 on. With 0.02 to
    # spare 0.23 is enough: at step t the mean is 0.005 (t - 1.5), so t = 47.5; the first whole step is 48.
    assert stalled_at(STEPS, rising_until(50), window=4, least=0.02) == 48
    # Without, the first mean of flat steps alone.
    assert stalled_at(STEPS, rising_until(50), window=4, least=0.0) == 53


def test_a_run_that_falls_has_stalled_at_its_best():
    falling = rising_until(50) - np.maximum(0, STEPS - 60) * 0.005
    assert stalled_at(STEPS, falling, window=4, least=0.0) == 53
    assert stalled_at(STEPS, 1 - STEPS / 100, window=4) == 4  # from the first window on


def test_a_late_improvement_undoes_a_plateau():
    two_plateaus = np.where(STEPS <= 70, 0.3, 0.5)
    assert stalled_at(STEPS, two_plateaus, window=4, least=0.02) == 74  # the first window after the rise
    assert stalled_at(STEPS, two_plateaus, window=4, least=0.2) == 4


def test_a_run_that_goes_on_improving_has_not_stalled():
    assert stalled_at(STEPS, STEPS * 0.005, window=4) is None
    # The last 10 steps are its last 10 %: it may stall before the first of them, step 91, and no later.
    assert stalled_at(STEPS, rising_until(90), window=1, least=0.0) == 90
    assert stalled_at(STEPS, rising_until(91), window=1, least=0.0) is None


def test_gain_by_hand():
    # Up to step 40 at 0.4, the last 10 steps at 0.7.
    reward = np.where(STEPS <= 40, 0.4, np.where(STEPS <= 90, 0.5, 0.7))
    assert gain_since(STEPS, reward, 40, window=4) == pytest.approx(0.3)
    assert gain_since(STEPS, reward, 42, window=4) == pytest.approx(0.25)  # two steps of 0.4, two of 0.5
    assert gain_since(STEPS, reward, 3, window=4) is None  # no whole window yet
    assert gain_since(STEPS, reward, 91, window=4) is None  # into the last 10 %


def test_the_last_mean_is_no_shorter_than_the_window():
    reward = np.where(STEPS <= 80, 0.4, 0.6)
    # 30 steps at least, of which 10 lie before the rise; 10 % would be 10 steps at 0.6.
    assert gain_since(STEPS, reward, 60, window=30) == pytest.approx((10 * 0.4 + 20 * 0.6) / 30 - 0.4)


def test_the_arm_is_measured_from_where_the_control_stalled():
    control = rising_until(50)
    arm = STEPS * 0.005
    # The control has stalled at 48: the arm's mean there is 0.2325; over steps 91 to 100 it is 0.4775.
    assert gain_after_clamp(STEPS, arm, STEPS, control, window=4) == pytest.approx(0.245)
    assert gain_after_clamp(STEPS, control, STEPS, control, window=4) == pytest.approx(0.25 - 0.2325)
    assert gain_after_clamp(STEPS, control, STEPS, arm, window=4) is None


def test_an_arm_that_ended_before_has_no_gain():
    control = rising_until(50)
    assert gain_after_clamp(STEPS[:40], control[:40], STEPS, control, window=4) is None
    assert gain_after_clamp(STEPS[:50], control[:50], STEPS, control, window=4) is None


def test_unmeasured_steps_are_passed_over_and_short_runs_have_no_answer():
    reward = rising_until(50)
    sparse = np.where(STEPS % 2, reward, math.nan)
    # Means over 2 of the odd steps: at 49 (47 and 49) 0.24; later 0.2475 and 0.25. With 0.005 to spare: at 51.
    assert stalled_at(STEPS, sparse, window=2, least=0.005) == 51
    assert stalled_at(STEPS[:3], reward[:3], window=4) is None
    assert stalled_at(np.array([]), np.array([]), window=4) is None
    assert gain_since(STEPS, np.full(100, math.nan), 50, window=4) is None
