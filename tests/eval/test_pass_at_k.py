import sys
from itertools import combinations, product
from pathlib import Path

import evaluate
import numpy as np
import pytest
import torch

import trl_prorl.eval.metrics.pass_at_k
from trl_prorl.pass_at_k import as_verdict, pass_at_k


METRIC = str(Path(trl_prorl.eval.metrics.pass_at_k.__file__).parent)


@pytest.fixture
def load(offline, tmp_path):
    """A function that loads the metric without a network; `evaluate` runs a copy of the file, from its cache."""
    return lambda: evaluate.load(METRIC, cache_dir=str(tmp_path))


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


def test_the_metric_averages_over_prompts(load):
    metric = load()
    predictions = [[True, False, False, False], [False, False]]  # n may differ between prompts
    expected = {"pass@1": pytest.approx(1 / 8), "pass@2": pytest.approx(1 / 4)}
    assert metric.compute(predictions=predictions) == {"pass@1": expected["pass@1"]}
    assert metric.compute(predictions=predictions, k=[1, 2]) == expected
    assert sys.modules[type(metric).__module__].pass_at_k is pass_at_k
    with pytest.raises(ValueError, match="k=3"):
        metric.compute(predictions=predictions, k=3)
    with pytest.raises(ValueError, match="k=1.5"):
        metric.compute(predictions=predictions, k=[1.5])
    with pytest.raises(ValueError, match="no prompts"):
        metric.compute(predictions=[])


def test_ones_and_zeros_of_any_library_are_verdicts_and_nothing_else(load):
    samples = [True, 0, 1.0, np.bool_(False), np.int64(1), torch.tensor(False)]
    assert load().compute(predictions=[samples]) == {"pass@1": pytest.approx(1 / 2)}
    for value in ("False", "", 0.5, 2, -1, None, float("nan"), [True], np.array([True, False])):
        with pytest.raises(ValueError, match="neither True nor False"):
            as_verdict(value, "the verifier")
    with pytest.raises(ValueError, match="neither True nor False"):
        load().compute(predictions=[[True, None]])
