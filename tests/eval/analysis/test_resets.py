import math
from dataclasses import replace

import numpy as np
import pytest

from trl_prorl.eval.analysis.resets import (
    Response,
    align_at_resets,
    band_over_resets,
    mean_dip,
    median_reconvergence,
    reset_responses,
)


def responses(reward, resets, **windows):
    """`reward` from step 1 on."""
    reward = np.array(reward, float)
    return reset_responses(np.arange(1, len(reward) + 1), reward, resets, **windows)


def test_dip_and_reconvergence_by_hand():
    # Level before: mean of 0.5, 0.6 and 0.7. Means over two steps after it: 0.35, 0.2, 0.4, 0.6, 0.65.
    (found,) = responses([0.9, 0.5, 0.6, 0.7, 0.5, 0.2, 0.2, 0.6, 0.6, 0.7], [4], before=3, after=2)
    assert (found.step, found.before, found.dip) == (4, pytest.approx(0.6), pytest.approx(0.4))
    assert mean_dip([found, replace(found, dip=0.2)]) == pytest.approx(0.3)
    assert (found.reconvergence, found.censored) == (3, False)  # the window that begins 3 steps after the reset


@pytest.mark.parametrize("after", [0.6, 0.1])  # 0.1 is equal but for rounding
def test_no_dip_is_back_at_once(after):
    found = responses([min(after, 0.5)] * 10 + [after] * 10, [10])
    assert (mean_dip(found), found[0].reconvergence, found[0].censored) == (pytest.approx(0.0), 0, False)


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


NAN = math.nan
TENS = np.arange(10.0, 130.0, 10.0)  # of steps 1 to 12: ten times the step


@pytest.mark.parametrize(
    ("resets", "rows"),
    [
        ([6], [[50, 60, 70, 80, 90]]),
        ([1], [[NAN, 10, 20, 30, 40]]),  # near the start: step 0 was never done
        ([11], [[100, 110, 120, NAN, NAN]]),  # near the end
        ([9, 3], [[20, 30, 40, 50, 60], [80, 90, 100, 110, 120]]),  # in any order
        ([5, 7], [[40, 50, 60, 70, NAN], [60, 70, 80, 90, 100]]),  # step 8 is after the second reset
    ],
)
def test_alignment_by_hand(resets, rows):
    """Two steps up to a reset, three after it."""
    aligned = align_at_resets(np.arange(1, 13), TENS, resets, before=2, after=3)
    np.testing.assert_array_equal(aligned, rows)


def test_alignment_leaves_open_what_was_not_measured():
    """Step 5 is on record without the metric, step 7 is not on record."""
    steps = [4, 5, 6, 8, 9]
    aligned = align_at_resets(steps, [1.0, NAN, 3.0, 4.0, 5.0], [6], before=3, after=3)
    np.testing.assert_array_equal(aligned, [[1, NAN, 3, NAN, 4, 5]])
    assert align_at_resets(steps, [1.0] * 5, [], before=3, after=3).shape == (0, 6)


def test_band_over_resets_by_hand():
    """Eleven resets: 0 to 10 at the step before, with percentiles 1 and 9; further on some have no value."""
    aligned = np.full((13, 4), NAN)
    aligned[:11, 0] = np.arange(11)
    aligned[:2, 1] = [4, 8]  # two of eleven
    aligned[:6, 2] = [1, 2, 3, 4, 5, 9]  # six of eleven
    band = band_over_resets(aligned, before=1)  # the last two have no value at all, and do not count
    assert band.index.tolist() == [0, 2]
    assert band["mean"].tolist() == pytest.approx([5.0, 4.0])
    assert band["low"].tolist() == pytest.approx([1.0, 1.5])
    assert band["high"].tolist() == pytest.approx([9.0, 7.0])
    assert band_over_resets(aligned, before=1, least=0.0).index.tolist() == [0, 1, 2]
    alone = band_over_resets(np.array([[NAN, 3.0, 4.0]]), before=2)
    assert alone["low"].tolist() == alone["mean"].tolist() == alone["high"].tolist() == [3.0, 4.0]
