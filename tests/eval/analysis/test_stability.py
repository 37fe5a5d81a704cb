import pytest

from eval.analysis import stability
from eval.run_folder.reading import load_run


@pytest.fixture
def run(make_run, make_rows):
    def make(steps=40, events=(), **values):
        return load_run(make_run("arm", "A", make_rows(steps, **values), events=events))

    return make


NONFINITE = [{"event": "nonfinite", "step_requested": 3, "step_applied": 3, "action": "skip"}]


# Ten steps at 0.8 make the best window; the last 10 % of 40 steps are 4.
@pytest.mark.parametrize(("last", "answer"), [(0.39, True), (0.41, False), (0.8, False)])
def test_collapse_is_an_end_below_half_of_the_best(run, last, answer):
    arm = run(reward=lambda step: 0.1 if step <= 10 else 0.8 if step <= 30 else last)
    assert stability.collapsed(arm) is answer


def test_one_lucky_step_is_not_the_best(run):
    # One step at 1.0 among 0.4: the best window is 0.46, half of it 0.23.
    assert stability.collapsed(run(reward=lambda step: 1.0 if step == 5 else 0.4 if step <= 36 else 0.24)) is False


def test_nonfinite_counts_as_collapse(run):
    arm = run(reward=0.5, events=NONFINITE)
    assert stability.nonfinite_events(arm) == 1
    assert stability.collapsed(arm) is True


def test_what_cannot_be_told(run):
    assert stability.collapsed(run(events=None)) is None  # no reward, no events


def test_other_events_are_not_nonfinite(run):
    assert stability.collapsed(run(reward=0.5, events=[{"event": "reset", "step_applied": 3}])) is False


def test_negative_rewards_have_no_half(run):
    assert stability.collapsed(run(reward=lambda step: -float(step))) is None


def test_short_runs_have_no_window(run):
    arm = run(steps=9, reward=0.5)
    assert stability.smoothed_reward(arm) is None
    assert stability.largest_drop(arm) is None


def test_largest_drop_by_hand(run):
    # Windows of 10: 0.5 in the first 10 steps, down to 0.2 where all ten steps are at 0.2, then up to 0.9.
    arm = run(reward=lambda step: 0.5 if step <= 15 else 0.2 if step <= 30 else 0.9)
    assert stability.largest_drop(arm) == pytest.approx(0.3)


def test_drop_is_from_the_best_so_far(make_run, make_rows):
    rising = load_run(make_run("rising", "A", make_rows(40, reward=lambda step: step / 40)))
    assert stability.largest_drop(rising) == pytest.approx(0.0)


def test_the_last_window_is_as_long_as_those_it_is_compared_with(make_run, make_rows):
    """A steady reward whose last two steps had no luck: 2 of 20 are no collapse."""
    rewards = [0.3] * 18 + [0.0] * 2
    run = load_run(make_run("A", "A", make_rows(20, reward=lambda step: rewards[step - 1])))
    assert stability.collapsed(run) is False
    rewards = [0.3] * 10 + [0.0] * 10
    run = load_run(make_run("B", "B", make_rows(20, reward=lambda step: rewards[step - 1])))
    assert stability.collapsed(run) is True
