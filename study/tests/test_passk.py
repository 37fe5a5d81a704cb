"""Right ones of many samples, and what bounds pass@k, against chances that are written out."""

from types import SimpleNamespace

import pandas as pd
import pytest

from study.passk import count_rows, moments, upper_bound
from trl_prorl.eval.analysis.statistics import pass_at_k_per_prompt


def test_a_row_for_each_question():
    verdicts = {2: [True, False, True, False, False, False], 3: [True, False, True, False, False, True]}
    held_out = SimpleNamespace(samples=lambda point, n: pd.DataFrame({"correct": verdicts[n]}))
    assert count_rows(held_out, None, 2) == [
        {"prompt": 0, "n": 2, "correct": 1},
        {"prompt": 1, "n": 2, "correct": 1},
        {"prompt": 2, "n": 2, "correct": 0},
    ]
    assert [row["correct"] for row in count_rows(held_out, None, 3)] == [2, 1]


def test_moments_by_hand():
    # Chances of 1/4 and 3/4: a mean of 1/2; squares of 0 and 3 · 2 / (4 · 3), a mean of 1/4.
    assert moments([1, 3], 4) == (0.5, 0.0)
    # Of 0, 1 and 1: squares of 0, 1 and 1.
    assert moments([0, 2, 2], 2) == pytest.approx((2 / 3, 2 / 3 - 4 / 9))


@pytest.mark.parametrize("chances", [[0.0, 1.0], [0.1, 0.2, 0.9], [0.01, 0.02, 0.5, 0.0]])
def test_pass_at_k_is_below_its_bound(chances):
    mean = sum(chances) / len(chances)
    variance = sum((chance - mean) ** 2 for chance in chances) / len(chances)
    for k in (2, 3, 8, 256):
        exact = sum(1 - (1 - chance) ** k for chance in chances) / len(chances)
        bound = upper_bound(mean, variance, k)
        if k == 2:
            assert bound == pytest.approx(exact)
        else:
            assert bound >= exact
        if k == 8:
            assert bound > exact + 0.01


def test_the_bound_by_hand():
    assert upper_bound(0.5, 0.0, 3) == pytest.approx(7 / 8)  # one chance of all: pass@3 itself
    # Half of the questions are always right, half never: (1/4 + 1/4)^2 are missed of two pairs of samples.
    assert upper_bound(0.5, 0.25, 4) == pytest.approx(3 / 4)


def test_the_bound_of_samples_is_pass_at_2_at_k_of_2():
    correct = [0, 1, 3, 8, 5]
    measured = pass_at_k_per_prompt(correct, 8, 2).mean()
    assert upper_bound(*moments(correct, 8), 2) == pytest.approx(measured)
