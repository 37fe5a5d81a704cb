"""The statistics of study/protocol5.py, on numbers computed by hand."""

import importlib.util
import sys
from pathlib import Path

import pandas as pd
import pytest


PATH = Path(__file__).parents[2] / "study" / "protocol5.py"


@pytest.fixture(scope="module")
def protocol5():
    spec = importlib.util.spec_from_file_location("protocol5", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["protocol5"] = module  # a dataclass looks its module up
    spec.loader.exec_module(module)
    return module


def test_the_largest_beta_within_one_point_of_the_best_is_chosen(protocol5):
    means = {0.1: (0.50, 0.60), 0.3: (0.49, 0.595), 1.0: (0.47, 0.59)}  # 55, 54.25 and 53 %
    rows = [
        {"task": "sums", "variant": f"A_beta{beta}", "beta": beta, "sampled": value}
        for beta, values in means.items()
        for value in values
    ]
    rows.append({"task": "sums", "variant": "fixed_beta1.0", "beta": 1.0, "sampled": 0.99})
    assert protocol5.chosen_beta(pd.DataFrame(rows), "sums", "A") == 0.3


def test_tasks_of_a_starting_model_are_averaged_before_the_test(protocol5):
    gains = {11: (0.02, 0.04), 12: (0.00, 0.02), 13: (0.03, 0.07)}  # means 3, 1 and 5 points
    rows = []
    for base, by_task in gains.items():
        for task, gain in zip(("reverse_digits", "sums"), by_task, strict=True):
            rows.append({"base": base, "task": task, "variant": "A", "sampled": 0.5 + gain})
            rows.append({"base": base, "task": task, "variant": "no_kl", "sampled": 0.5})
    values = protocol5.difference(pd.DataFrame(rows), "base", "A", "no_kl", "sampled")
    assert values.to_list() == pytest.approx([0.03, 0.01, 0.05])
    found = protocol5.tested("A − no_kl", values)
    # Mean 3 points, standard error 2 / √3 = 1.1547, t of 2 degrees of freedom 2.598; 4.3027 at 95 %, 2.92 at 90 %.
    assert found["p"] == pytest.approx(0.1217, abs=1e-4)
    assert (found["low"], found["high"]) == pytest.approx((-0.01968, 0.07968), abs=1e-5)
    assert not found["within margin"]  # 3 + 2.92 · 1.1547 = 6.4 points


def test_a_narrow_interval_lies_within_the_margin(protocol5):
    assert protocol5.tested("C − A", pd.Series([0.01, 0.00, 0.005]))["within margin"]
