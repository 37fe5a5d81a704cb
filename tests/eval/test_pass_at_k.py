from itertools import combinations, product

import numpy as np
import pytest
import torch

from trl_prorl.pass_at_k import as_verdict, pass_at_k


def test_against_all_subsets():
    for n in range(1, 7):
        for c, k in product(range(n + 1), range(1, n + 1)):
            draws = [any(draw) for draw in combinations([True] * c + [False] * (n - c), k)]
            assert pass_at_k(n, c, k) == pytest.approx(sum(draws) / len(draws), abs=1e-12)
    assert pass_at_k(200, 1, 100) == pytest.approx(1 / 2, abs=1e-12)  # where binomials have 59 digits


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 0), (4, 5, 1), (4, -1, 1), (4, 1, 5), (4, 1, 1.5)])
def test_impossible_counts_are_refused(n, c, k):
    with pytest.raises(ValueError, match=r"k=0|c=5|c=-1|k=5|k=1.5"):
        pass_at_k(n, c, k)


@pytest.mark.parametrize("value", ["False", "", 0.5, 2, -1, None, float("nan"), [True], np.array([True, False])])
def test_only_ones_and_zeros_of_any_library_are_verdicts(value):
    samples = [True, 0, 1.0, np.bool_(False), np.int64(1), torch.tensor(False)]
    verdicts = [as_verdict(sample, "the verifier") for sample in samples]
    assert verdicts == [True, False] * 3
    with pytest.raises(ValueError, match="neither True nor False"):
        as_verdict(value, "the verifier")
