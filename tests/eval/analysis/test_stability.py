import functools

import numpy as np
import pandas as pd
import pytest

from trl_prorl.eval.analysis import stability
from trl_prorl.eval.analysis.stability import (
    ENTROPY_SPIKE,
    GRADIENT_SPIKE,
    KL_SPIKE,
    find_spikes,
    neighbour_medians,
)


@pytest.fixture
def run(read_run):
    return functools.partial(read_run, "A", steps=40)


def ends_at(last):
    return lambda step: 0.1 if step <= 10 else 0.8 if step <= 30 else last


NONFINITE = [{"event": "nonfinite", "step_requested": 3, "step_applied": 3, "action": "skip"}]


@pytest.mark.parametrize(
    ("answer", "keys"),
    [
        # Ten steps at 0.8 make the best window; the last 10 % of 40 steps are 4.
        *((last < 0.4, {"reward": ends_at(last)}) for last in (0.39, 0.41, 0.8)),
        # One step at 1.0 among 0.4: the best window is 0.46, half of it 0.23.
        (False, {"reward": lambda step: 1.0 if step == 5 else 0.4 if step <= 36 else 0.24}),
        # A steady reward whose last two steps had no luck: 2 of 20 are no collapse, 10 are.
        (False, {"steps": 20, "reward": lambda step: 0.3 * (step <= 18)}),
        (True, {"steps": 20, "reward": lambda step: 0.3 * (step <= 10)}),
        (None, {"reward": lambda step: -float(step)}),  # no half of a negative reward
        (None, {"events": None}),  # no reward, no events
        (False, {"reward": 0.5, "events": [{"event": "reset", "step_applied": 3}]}),
        (True, {"reward": 0.5, "events": NONFINITE}),
    ],
)
def test_collapse_is_an_end_below_half_of_the_best(run, answer, keys):
    assert stability.has_collapsed(run(**keys)) is answer


def test_a_running_median_leaves_out_a_kl_that_is_0_by_construction():
    assert stability.running_median_of_positive(pd.Series([0.0, 1.0, 3.0])).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("reward", "drop"),
    [
        # Windows of 10: 0.5 in the first 10 steps, down to 0.2 where all ten steps are at 0.2, then up to 0.9.
        (lambda step: 0.5 if step <= 15 else 0.2 if step <= 30 else 0.9, 0.3),
        (lambda step: step / 40, 0.0),  # from the best so far
        (lambda step: 0.5 * (step != 20), 0.05),  # one step of ten
    ],
)
def test_largest_drop_by_hand(run, reward, drop):
    assert stability.largest_drop(run(reward=reward)) == pytest.approx(drop)
    assert stability.largest_drop(run(name="short", steps=9, reward=reward)) is None


def flat(value=0.01, **changes):
    values = np.full(60, value)
    for place, other in changes.items():
        values[int(place[1:])] = other
    return values


@pytest.mark.parametrize(
    ("values", "rule", "count", "largest"),
    [
        (flat(_30=np.inf), KL_SPIKE, 1, np.inf),
        # Tenfold every ten steps; a sawtooth that starts again at 0 every 10 steps; a level that stays.
        (0.001 * 10 ** (np.arange(40) / 10), KL_SPIKE, 0, None),
        (0.01 * (np.arange(100) % 10) ** 2, KL_SPIKE, 0, None),
        (np.concatenate([np.full(30, 0.01), np.full(30, 5.0)]), KL_SPIKE, 0, None),
        (np.full(30, np.nan), KL_SPIKE, 0, None),
        (np.array([0.01, 5.0, 0.01]), KL_SPIKE, 0, None),  # too short
        # The report's: tenfold; a multiple of next to nothing is none.
        (flat(_30=0.1), KL_SPIKE, 1, 10),
        (flat(_0=0.1), KL_SPIKE, 1, 10),
        (flat(_30=0.0999), KL_SPIKE, 0, None),
        (flat(value=1e-6, _30=0.0099), KL_SPIKE, 0, None),
        (flat(value=0.4, _30=0.61), ENTROPY_SPIKE, 1, 1.525),
        (flat(value=0.4, _30=0.59), ENTROPY_SPIKE, 0, None),
        (flat(value=0.05, _30=0.14), ENTROPY_SPIKE, 0, None),
        # The norm of the gradient: five times its neighbours, in whatever unit.
        (flat(value=0.2, _30=1.0), GRADIENT_SPIKE, 1, 5),
        (flat(value=0.2, _30=0.999), GRADIENT_SPIKE, 0, None),
        (flat(value=1e-9, _30=6e-9), GRADIENT_SPIKE, 1, 6),
    ],
)
def test_a_spike_is_a_multiple_of_its_neighbours_and_a_rise(values, rule, count, largest):
    found = find_spikes(values, rule)
    assert found.count == count
    assert found.largest is None if largest is None else found.largest == pytest.approx(largest)


def test_high_steps_in_a_row_are_one_spike_told_by_the_highest():
    found = find_spikes(flat(_30=0.2, _31=0.7, _32=0.3, _50=0.5), KL_SPIKE)
    assert found.places.tolist() == [31, 50]
    assert found.ratios == pytest.approx([70, 50])


def test_what_is_zero_by_construction_neither_parts_a_spike_nor_lowers_the_median():
    """The KL to the sampling policy: 0 in every first pass."""
    values = np.where(np.arange(60) % 2, 0.01, 0.0)
    values[[31, 33]] = 0.5
    found = find_spikes(values, KL_SPIKE)
    assert found.places.tolist() == [31]
    assert found.ratios == pytest.approx([50])


def test_medians_by_hand():
    # Two on each side would be too few neighbours; with three, of 1 … 8: around the fifth stand 2, 3, 4, 6, 7 and 8.
    medians = neighbour_medians(np.arange(1.0, 9.0), neighbours=3)
    assert medians[4] == 5.0
    # Around the third stand 1, 2, 4, 5 and 6; around the second only 1, 3, 4 and 5.
    assert medians[2] == 4.0
    assert np.isnan(medians[1])
