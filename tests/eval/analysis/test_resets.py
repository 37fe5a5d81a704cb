import math

import numpy as np
import pytest

from eval.analysis.resets import Response, mean_dip, median_reconvergence, reset_responses


def responses(reward, resets, **windows):
    """`reward` from step 1 on."""
    reward = np.array(reward, float)
    return reset_responses(np.arange(1, len(reward) + 1), reward, resets, **windows)


def test_dip_and_reconvergence_by_hand():
    # Level before: mean of 0.5, 0.6 and 0.7. Means over two steps after it: 0.35, 0.2, 0.4, 0.6, 0.65.
    (found,) = responses([0.9, 0.5, 0.6, 0.7, 0.5, 0.2, 0.2, 0.6, 0.6, 0.7], [4], before=3, after=2)
    assert (found.step, found.before, found.dip) == (4, pytest.approx(0.6), pytest.approx(0.4))
    assert (found.reconvergence, found.censored) == (3, False)  # the window that begins 3 steps after the reset


def test_no_dip_is_back_at_once():
    (found,) = responses([0.5] * 10 + [0.6] * 10, [10])
    assert (found.dip, found.reconvergence, found.censored) == (0.0, 0, False)
    (found,) = responses([0.1] * 20, [10])  # equal but for rounding
    assert (found.dip, found.reconvergence, found.censored) == (pytest.approx(0.0), 0, False)


def test_the_next_reset_and_the_end_censor():
    # Down to 0.3 after the first reset and back at 0.5 only 6 steps later, after the second; then down for good.
    reward = [0.5] * 10 + [0.3] * 6 + [0.5] * 6 + [0.1] * 8
    first, second, third = responses(reward, [10, 16, 22], before=3, after=2)
    assert (first.dip, first.reconvergence, first.censored) == (pytest.approx(0.2), 5, True)  # 5 windows of two steps
    assert (second.dip, second.reconvergence, second.censored) == (0.0, 0, False)
    assert (third.dip, third.reconvergence, third.censored) == (pytest.approx(0.4), 7, True)


def test_the_level_before_begins_after_the_previous_reset():
    first, second = responses([1.0] * 5 + [0.4] * 10, [5, 8], before=10, after=2)
    assert first.before == 1.0
    assert second.before == pytest.approx(0.4)


def test_what_cannot_be_told_is_left_out():
    assert responses([0.5] * 10, [0, 8], after=3) == []  # nothing before; no whole window after
    assert responses([], [5]) == [] == responses([0.5] * 10, [])
    assert len(responses([0.5] * 10, [5, 5], after=3)) == 1  # one reset, named twice


def test_unmeasured_steps_are_passed_over():
    reward = [0.5, math.nan, 0.7, math.nan, 0.2, math.nan, 0.4, 0.8, 0.8]
    (found,) = responses(reward, [4], before=4, after=2)
    # Before: 0.5 and 0.7. After: 0.2, 0.4, 0.8, 0.8, with means 0.3, 0.6, 0.8.
    assert (found.before, found.dip) == (pytest.approx(0.6), pytest.approx(0.3))
    assert found.reconvergence == 1


@pytest.mark.parametrize(
    ("back", "median"),
    [
        ("2 4 9", 4),
        # At 2 four of five are left, at 6 half of these (one of the two still watched): 0.8, then 0.4.
        ("2 >3 >3 6 >7", 6),
        # As though the two had been back at once it would be 3; left out, 4.
        ("2 >5 9", 9),
        ("0 0 3 >5", 0),
        ("2 >3 >4", math.inf),
        (">3", math.inf),
        ("", None),
    ],
)
def test_median_by_kaplan_and_meier(back, median):
    """Steps until it is back; with `>`, those for which it was watched in vain."""
    found = [Response(0, 0.5, 0.0, int(one.strip(">")), censored=">" in one) for one in back.split()]
    assert median_reconvergence(found) == median


def test_mean_dip():
    assert mean_dip([Response(0, 0.5, 0.1, 0, False), Response(0, 0.5, 0.3, 0, False)]) == pytest.approx(0.2)
    assert mean_dip([]) is None
