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
from trl_prorl.keys import LOWER_THE_REWARD


@pytest.fixture
def run(read_run):
    return functools.partial(read_run, "A", steps=40)


def ends_at(last):
    return lambda step: 0.1 if step <= 10 else 0.8 if step <= 30 else last


@pytest.mark.parametrize(
    ("answer", "keys"),
    [
        # Ten steps at 0.8 make the best window, ten at 0.1 the first, the last are ten: half of the rise is 0.35.
        *((last < 0.45, {"reward": ends_at(last)}) for last in (0.44, 0.46)),
        # The same, of rewards from -12 to 0, or of thousands.
        *((last < 0.45, {"reward": lambda step, last=last: 12 * ends_at(last)(step) - 12}) for last in (0.44, 0.46)),
        *((last < 0.45, {"reward": lambda step, last=last: 9000 * ends_at(last)(step)}) for last in (0.44, 0.46)),
        # One step at 1.0 among 0.4: the best window is 0.46, and a step's standard deviation 0.1.
        (False, {"reward": lambda step: 1.0 if step == 5 else 0.4 if step <= 36 else 0.24}),
        # A steady reward whose last two steps had no luck: 2 of 20 are no collapse, 10 are.
        (False, {"steps": 20, "reward": lambda step: 0.3 * (step <= 18)}),
        (True, {"steps": 20, "reward": lambda step: 0.3 * (step <= 10)}),
        (True, {"reward": lambda step: -float(step)}),
        (None, {"events": None}),  # no reward, no events
        *((None, {"reward": ends_at(0.1), "config": {key: 4}}) for key in LOWER_THE_REWARD),
        (False, {"reward": ends_at(0.5), "config": {"length_off": 0}}),
        (False, {"reward": 0.5, "events": [{"event": "reset", "step_applied": 3}]}),
        (True, {"reward": 0.5, "events": [{"event": "nonfinite", "step_requested": 3, "step_applied": 3}]}),
    ],
)
def test_a_collapse_is_a_fall_by_half_of_the_rise_and_more_than_noise(run, answer, keys):
    assert stability.has_collapsed(run(**keys)) is answer


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


def first_passes():
    """The KL to the sampling policy: 0 in every first pass, which neither parts a spike nor lowers the median."""
    values = np.where(np.arange(60) % 2, 0.01, 0.0)
    values[[31, 33]] = 0.5
    return values


@pytest.mark.parametrize(
    ("values", "rule", "spikes"),
    [
        (flat(_30=np.inf), KL_SPIKE, {30: np.inf}),
        # Tenfold every ten steps; a sawtooth that starts again at 0 every 10 steps; a level that stays.
        (0.001 * 10 ** (np.arange(40) / 10), KL_SPIKE, {}),
        (0.01 * (np.arange(100) % 10) ** 2, KL_SPIKE, {}),
        (np.concatenate([np.full(30, 0.01), np.full(30, 5.0)]), KL_SPIKE, {}),
        (np.array([0.01, 5.0, 0.01]), KL_SPIKE, {}),  # too short
        # The report's: tenfold; a multiple of next to nothing is none.
        (flat(_30=0.1), KL_SPIKE, {30: 10}),
        (flat(_0=0.1), KL_SPIKE, {0: 10}),
        (flat(_30=0.0999), KL_SPIKE, {}),
        (flat(value=1e-6, _30=0.0099), KL_SPIKE, {}),
        (flat(value=0.4, _30=0.61), ENTROPY_SPIKE, {30: 1.525}),
        (flat(value=0.4, _30=0.59), ENTROPY_SPIKE, {}),
        (flat(value=0.05, _30=0.14), ENTROPY_SPIKE, {}),
        # The norm of the gradient: five times its neighbours, in whatever unit.
        (flat(value=0.2, _30=0.999), GRADIENT_SPIKE, {}),
        (flat(value=1e-9, _30=6e-9), GRADIENT_SPIKE, {30: 6}),
        # High steps in a row are one spike, told by the highest.
        (flat(_30=0.2, _31=0.7, _32=0.3, _50=0.5), KL_SPIKE, {31: 70, 50: 50}),
        (first_passes(), KL_SPIKE, {31: 50}),
    ],
)
def test_a_spike_is_a_multiple_of_its_neighbours_and_a_rise(values, rule, spikes):
    assert find_spikes(pd.Series(values), rule).to_dict() == pytest.approx(spikes)


def test_a_kl_that_grows_again_after_a_reset_is_no_spike():
    """It is 0.001 for 20 steps, grows to 0.04 in four, and is reset again."""
    values = pd.Series(np.concatenate([np.full(20, 0.001), [0.01, 0.02, 0.03, 0.04], np.full(20, 0.001)]))
    assert find_spikes(values, KL_SPIKE).index.tolist() == [23]
    assert find_spikes(values, KL_SPIKE, resets=[19, 23]).empty


def test_medians_by_hand(monkeypatch):
    monkeypatch.setattr(stability, "NEIGHBOURS", 3)
    # Of 1 … 8: around the fifth stand 2, 3, 4, 6, 7 and 8, around the third 1, 2, 4, 5 and 6, around the second only
    # 1, 3, 4 and 5, which are too few.
    medians = neighbour_medians(pd.Series(np.arange(1.0, 9.0)))
    np.testing.assert_array_equal(medians[[4, 2, 1]], [5.0, 4.0, np.nan])
