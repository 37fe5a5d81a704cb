"""Which runs trained alone, from spans of steps worked out by hand."""

import pytest

from trl_prorl.eval.analysis.timing import Timing, step_spans


@pytest.fixture
def run(read_run):
    """A function: a run of 3 steps of 2 s each, a pause after each; the last one ends at the given second."""

    def make(name, last, pause=0.0):
        def ended(step):
            return last - (3 - step) * (2.0 + pause)

        return read_run("A", name=name, steps=3, time_step=2.0, time_ended=ended)

    return make


def names(runs):
    return [run.name for run in runs]


def test_spans_by_hand(run):
    begun, ended = step_spans(run("a", 106.0))
    assert begun.tolist() == [100.0, 102.0, 104.0]
    assert ended.tolist() == [102.0, 104.0, 106.0]


@pytest.mark.parametrize(
    ("last", "pause", "beside"),
    [
        (112.0, 0.0, False),  # begins in the moment in which the other one ends
        (111.75, 0.0, True),
        (100.25, 0.0, True),
        (100.0, 0.0, False),
        (103.0, 0.0, True),
        (108.0, 6.0, False),  # 90 to 92, 98 to 100, 106 to 108: the other one ran in its pause, as before a resume
        (107.0, 6.0, True),  # … 105 to 107
    ],
)
def test_a_step_beside_a_step_of_another_run(run, last, pause, beside):
    pair = [run("a", 106.0), run("b", last, pause)]
    for runs in (pair, pair[::-1]):
        timing = Timing(runs)
        assert names(timing.beside) == (names(runs) if beside else [])
        assert [timing.alone(each) for each in runs] == [not beside] * 2
        assert not timing.unknown


def test_one_of_three_trained_alone(run):
    runs = [run("a", 106.0), run("b", 105.0), run("c", 200.0)]
    timing = Timing(runs)
    assert names(timing.beside) == ["a", "b"]
    assert [timing.alone(each) for each in runs] == [False, False, True]


def test_a_record_without_the_time_says_nothing_of_its_neighbours(run, read_run):
    earlier = read_run("B", name="earlier", steps=3, time_step=2.0, time_ended=None)
    later = run("later", 106.0)
    timing = Timing([earlier, later])
    assert names(timing.unknown) == ["earlier"]
    assert not timing.alone(earlier)
    assert timing.alone(later)
    assert Timing([earlier]).alone(earlier)  # compared with none
    resumed = read_run("B", name="resumed", steps=3, time_step=2.0, time_ended=lambda step: 9.0 if step > 1 else None)
    assert names(Timing([resumed, later]).unknown) == ["resumed"]


def test_a_run_that_was_not_timed_is_no_neighbour(run, read_run):
    timing = Timing([read_run("B", name="untimed"), run("a", 106.0)])
    assert not timing.beside
    assert not timing.unknown
