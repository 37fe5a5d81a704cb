import pandas as pd
import pytest

from eval.analysis.passk import draw_sizes, greedy_side, summarise


@pytest.mark.parametrize(("n", "ks"), [(1, [1]), (12, [1, 2, 4, 8, 12]), (16, [1, 2, 4, 8, 16])])
def test_sizes(n, ks):
    assert draw_sizes(n) == ks
    assert n != 12 or draw_sizes(n, evaluated=(1, 3, 32)) == [1, 2, 3, 4, 8, 12]


def test_pass_at_k_is_that_of_the_metric_of_evaluate(monkeypatch):
    asked = []

    class Metric:
        def compute(self, predictions, **others):
            asked.append((predictions, others))
            return {"pass@1": 0.125}

    monkeypatch.setattr("eval.analysis.statistics.metric", lambda name: Metric())
    assert summarise([[True, False], [False, False]], [1])["pass@1"] == 0.125
    assert asked == [([[True, False], [False, False]], {"k": [1]})]
    assert greedy_side(pd.DataFrame({"correct": [True, False, False, False]}))["accuracy"] == 0.25
