import functools

import pytest

from eval.analysis import stability


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
    ],
)
def test_collapse_is_an_end_below_half_of_the_best(run, answer, keys):
    assert stability.collapsed(run(**keys)) is answer


def test_nonfinite_counts_as_collapse(run):
    arm = run(reward=0.5, events=NONFINITE)
    assert stability.nonfinite_events(arm) == 1
    assert stability.collapsed(arm) is True


def test_short_runs_have_no_window(run):
    arm = run(steps=9, reward=0.5)
    assert stability.smoothed_reward(arm) is None
    assert stability.largest_drop(arm) is None


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
