"""Best of k against every choice written out, and numbers worked out by hand."""

from itertools import combinations

import pytest

from study.best_of import best_of


def by_enumeration(rewards, correct, k):
    """The mean over all choices of k, in each of which all of its best are equally likely."""
    chances = []
    for chosen in combinations(range(len(rewards)), k):
        best = max(rewards[place] for place in chosen)
        verdicts = [correct[place] for place in chosen if rewards[place] == best]
        chances.append(sum(verdicts) / len(verdicts))
    return sum(chances) / len(chances)


@pytest.mark.parametrize("k", [1, 2, 5, 7])
@pytest.mark.parametrize(
    "rewards, correct",
    [
        ([1, 1, 0, 0, 1, 0, 1], [1, 0, 0, 0, 1, 0, 0]),  # paid and wrong: a reward that is gamed
        ([0, 0, 0, 0, 0, 0, 0], [1, 0, 0, 1, 0, 0, 0]),  # nothing but ties
        ([0.5, 1.0, 0.25, 0.5, 1.0, 0.75, 0.25], [1, 0, 1, 0, 1, 1, 0]),
    ],
)
def test_it_is_the_mean_over_every_choice(rewards, correct, k):
    assert best_of(rewards, correct, k) == pytest.approx(by_enumeration(rewards, correct, k), abs=1e-12)


def test_by_hand():
    # Of the choices of 2 of 4, three have the only paid text, which is wrong; the other three are ties of 0, each
    # right one time in three on average over the choices: 3/6 · 0 + 3/6 · 1/3.
    assert best_of([1, 0, 0, 0], [False, True, False, False], 2) == pytest.approx(1 / 6)
    assert best_of([1, 0, 0, 0], [True, False, False, False], 4) == 1


@pytest.mark.parametrize("k", [0, 3])
def test_there_are_not_so_many(k):
    with pytest.raises(ValueError, match=f"k={k} has to lie between 1 and the 2 samples"):
        best_of([0, 1], [True, False], k)
