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
    assert found["90 % high"] == pytest.approx(0.06372, abs=1e-5)  # 3 + 2.92 · 1.1547 points
    assert not found["within margin"]


def test_a_narrow_interval_lies_within_the_margin(protocol5):
    assert protocol5.tested("C − A", pd.Series([0.01, 0.00, 0.005]))["within margin"]


def rows_of(by_variant: dict[str, tuple], tasks=("sums",)) -> pd.DataFrame:
    """Return a table with every score of a variant set to the given values, one for each starting model."""
    rows = []
    for variant, values in by_variant.items():
        for base, value in enumerate(values, start=11):
            scores = dict.fromkeys(("sampled", "greedy", "at_best", "pass@64"), value)
            rows += [{"base": base, "task": task, "variant": variant} | scores for task in tasks]
    return pd.DataFrame(rows)


def test_a_registered_difference_gets_one_of_three_answers_or_two(protocol5):
    table = rows_of(
        {"no_kl": (0.5, 0.5, 0.5), "A": (0.51, 0.52, 0.51), "C_hard": (0.6, 0.4, 0.51), "fixed": (0.4, 0.5, 0.6)}
    )
    registered, _ = protocol5.exact_tests(table)
    answers = registered.set_index("name")["answer"]
    # A: 1.33 points, standard error 0.33, p 0.057 alone and 0.23 of four. C: a spread of 20 points.
    assert answers["A − no_kl, sampled"] == "equivalent within 3 points"
    assert answers["C_hard − A, greedy"] == "open"
    far = table.assign(sampled=table["sampled"] + 0.1 * (table["variant"] == "A"))
    registered, _ = protocol5.exact_tests(far)
    assert registered.set_index("name").loc["A − no_kl, sampled", "answer"] == "different"


@pytest.mark.parametrize(
    ("moving", "met", "refuted"),
    [
        ((0.50, 0.51, 0.505), {"E1", "E3", "E7"}, set()),
        ((0.45, 0.46, 0.455), set(), {"E1", "E7"}),  # −4.5 points, 95 % interval −5.7 to −3.3
        ((0.40, 0.56, 0.48), {"E1", "E3"}, set()),  # −2 points, and an interval of ±20
    ],
)
def test_a_prediction_is_refuted_by_an_interval_that_lies_outside(protocol5, moving, met, refuted):
    table = rows_of({"no_kl": (0.5,) * 3, "fixed": (0.4, 0.5, 0.45), "A": moving, "C_hard": moving})
    found = protocol5.exact_predictions(table)
    found = found.set_index(found["prediction"].str[:2]).loc[["E1", "E3", "E7"]]
    assert set(found.index[found["met"]]) == met | {"E3"}
    assert set(found.index[found["refuted"]]) == refuted


def test_the_best_temperature_shall_bring_a_mean_nearer_to_zero(protocol5):
    table = rows_of(dict.fromkeys(("no_kl", "fixed", "C_hard"), (0.5, 0.5, 0.5)) | {"A": (0.52, 0.54, 0.56)})
    nearer = table.assign(at_best=0.5 + (table["at_best"] - 0.5) / 2)
    farther = table.assign(at_best=0.5 - (table["at_best"] - 0.5) * 2)
    for changed, refuted in ((nearer, False), (farther, True)):
        last = protocol5.exact_predictions(changed).iloc[-1]
        assert last["refuted"] == refuted
        assert last["met"] != refuted


def test_slopes_of_the_last_third_are_compared_by_number(protocol5):
    rows = []
    for base, gain in ((11, 2.0), (12, 4.0)):  # points in the last 1,000 of 3,000 steps, more than without a KL
        for variant in ("no_kl", "fixed", "A", "C_hard"):
            end = 0.50 + (gain / 100 if variant == "A" else 0.0)
            for step, accuracy in ((1000, 0.1), (2000, 0.40), (2500, (0.40 + end) / 2), (3000, end)):
                name = f"exact-sums-{base}-{variant}-seed{base}"
                rows.append({"run": name, "step": step, "eval_pass@1": accuracy})
    found = protocol5.slope_tests(pd.DataFrame(rows)).set_index("name")
    assert found.loc["A − no_kl, slope", "mean"] == pytest.approx(3.0)
    assert found.loc["A − no_kl, slope", "high"] == pytest.approx(3.0 + 12.7062)  # standard error 1, one degree
    assert found.loc["C_hard − A, slope", "mean"] == pytest.approx(-3.0)


def test_a_table_with_a_missing_or_a_second_row_is_not_graded(protocol5):
    runs = protocol5.smollm2_runs()
    table = pd.DataFrame([vars(run) for run in runs])
    protocol5.check_whole(table, runs)
    for changed in (table.iloc[1:], pd.concat([table, table.iloc[:1]])):
        with pytest.raises(SystemExit, match=f"{len(changed)} rows for {len(runs)} runs"):
            protocol5.check_whole(changed, runs)


def test_smollm2_is_compared_by_seed_with_intervals_over_questions_beside(protocol5):
    runs, questions = [], []
    for seed in (11, 12, 13):
        for variant, gain in (("no_kl", 0.0), ("kl_target", 0.1 * (seed - 10))):  # 10, 20 and 30 points
            for name in ("a", "b"):
                gain_here = gain + (0.05 if name == "a" and variant == "kl_target" else 0.0)
                scores = {"sampled": 0.4 + gain_here, "base_sampled": 0.3, "stopped_sampled": float("nan")}
                greedy = 0.41 if seed == 12 and gain else 0.4
                scores |= {"greedy": greedy, "base_greedy": 0.4, "stopped_greedy": float("nan")}
                if variant == "no_kl":
                    scores |= {"stopped_sampled": 0.5, "stopped_greedy": 0.4 + seed / 1000}
                questions.append({"seed": seed, "variant": variant, "question": name} | scores)
            runs.append(pd.DataFrame(questions[-2:]).drop(columns="question").groupby(["seed", "variant"]).mean())
    table = pd.concat(runs).reset_index()
    found = protocol5.smollm2_tests(table, pd.DataFrame(questions)).set_index("name")
    assert found["mean"].to_list() == pytest.approx([0.225, 1 / 300, 0.325, 1 / 300, 0.125, 1 / 300 - 0.012])
    # Over seeds ±4.3027 · 10 / √3; over the two questions, 25 and 20 points, ±12.706 · 2.5.
    assert found.loc["KL − no KL, sampled", "low"] == pytest.approx(0.225 - 0.24841, abs=1e-5)
    assert found.loc["KL − no KL, sampled", "low, questions"] == pytest.approx(0.225 - 0.31766, abs=1e-5)
    assert found["p (Holm)"].notna().to_list() == [True] * 4 + [False] * 2
    graded = protocol5.smollm2_predictions(table).set_index("prediction")
    assert list(graded["met"]) == [True, True, True, False]
    assert not graded["refuted"].any()
