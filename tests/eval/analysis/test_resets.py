import math

import numpy as np
import pandas as pd
import pytest

from trl_prorl.eval.analysis import around_resets as module
from trl_prorl.eval.analysis.around_resets import (
    Response,
    align_at_resets,
    band_over_resets,
    mean_dip,
    median_reconvergence,
    reset_responses,
)


NAN = math.nan


@pytest.fixture
def responses(monkeypatch):
    """A function: dip, reconvergence and whether it is censored at each reset, for rewards from step 1 on."""

    def find(reward, resets, before, after):
        monkeypatch.setattr(module, "BEFORE", before)
        monkeypatch.setattr(module, "AFTER", after)
        series = pd.Series(reward, range(1, len(reward) + 1), dtype=float).dropna()
        return [(each.dip, each.reconvergence, each.censored) for each in reset_responses(series, resets)]

    return find


@pytest.mark.parametrize(
    ("reward", "resets", "before", "after", "expected"),
    [
        # Level before: mean of 0.5, 0.6 and 0.7. Means over two steps after it: 0.35, 0.2, 0.4, 0.6, 0.65.
        ([0.9, 0.5, 0.6, 0.7, 0.5, 0.2, 0.2, 0.6, 0.6, 0.7], [4], 3, 2, [(0.4, 3, False)]),
        # No dip is back at once, also if it is equal but for rounding.
        ([0.5] * 10 + [0.6] * 10, [10], 10, 5, [(0.0, 0, False)]),
        ([0.1] * 20, [10], 10, 5, [(0.0, 0, False)]),
        # Down to 0.3 after the first reset and back at 0.5 only 6 steps later, after the second; then down for good.
        (
            [0.5] * 10 + [0.3] * 6 + [0.5] * 6 + [0.1] * 8,
            [10, 16, 22],
            3,
            2,
            [(0.2, 5, True), (0.0, 0, False), (0.4, 7, True)],
        ),
        # The level before the second is 0.4: it begins after the previous reset.
        ([1.0] * 5 + [0.4] * 10, [5, 8], 10, 2, [(0.6, 2, True), (0.0, 0, False)]),
        # Steps without a reward. Before: 0.5 and 0.7. After: 0.2, 0.4, 0.8, 0.8, with means 0.3, 0.6, 0.8.
        ([0.5, NAN, 0.7, NAN, 0.2, NAN, 0.4, 0.8, 0.8], [4], 4, 2, [(0.3, 1, False)]),
        # Nothing before; no whole window after; one reset, named twice.
        ([0.5] * 10, [0, 5, 5, 8], 10, 3, [(0.0, 0, False)]),
    ],
)
def test_dip_and_reconvergence_by_hand(responses, reward, resets, before, after, expected):
    found = responses(reward, resets, before, after)
    assert [each[1:] for each in found] == [each[1:] for each in expected]
    assert [each[0] for each in found] == pytest.approx([each[0] for each in expected])


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
    found = [Response(0.25, int(one.strip(">")), censored=">" in one) for one in back.split()]
    assert median_reconvergence(found) == median
    assert mean_dip(found) == (0.25 if back else None)


@pytest.mark.parametrize(
    ("resets", "rows"),
    [
        ([6], [[50, 60, 70, 80, 90]]),
        ([1], [[NAN, 10, 20, 30, 40]]),  # near the start: step 0 was never done
        ([11], [[100, 110, NAN, NAN, NAN]]),  # near the end, and step 12 was not measured
        ([9, 3], [[20, 30, 40, 50, 60], [80, 90, 100, 110, NAN]]),  # in any order
        ([5, 6], [[40, 50, 60, NAN, NAN], [NAN, 60, 70, 80, 90]]),  # steps of the other reset are left out
        ([], np.empty((0, 5))),
    ],
)
def test_alignment_by_hand(monkeypatch, resets, rows):
    """Two steps up to a reset, three after it; the metric is ten times the step, up to step 11."""
    monkeypatch.setattr(module, "AROUND", (2, 3))
    values = pd.Series({step: 10.0 * step for step in range(1, 12)})
    np.testing.assert_array_equal(align_at_resets(values, resets), rows)


def test_band_over_resets_by_hand(monkeypatch):
    """Eleven resets: 0 to 10 at the step before, with percentiles 1 and 9; further on some have no value."""
    monkeypatch.setattr(module, "AROUND", (1, 3))
    aligned = np.full((11, 4), NAN)
    aligned[:, 0] = np.arange(11)
    aligned[:2, 1] = [4, 8]  # two of eleven
    aligned[:6, 2] = [1, 2, 3, 4, 5, 9]  # six of eleven
    band = band_over_resets(aligned)
    assert band.index.tolist() == [0, 2]
    assert band.to_numpy() == pytest.approx(np.array([[5.0, 1.0, 9.0], [4.0, 1.5, 7.0]]))
