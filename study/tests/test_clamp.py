"""A run's asymptote and its speed, on curves that are sigmoids by construction."""

import numpy as np
import pandas as pd
import pytest

from study.clamp import clamp, fit_asymptote, slowing, slowing_of_plain, summary
from study.matrix import RunKey, read_matrix
from study.tables import Tables


BASE = 0.25  # of made-up runs
STEPS = pd.RangeIndex(1, 3001)
MATRIX = """
evaluation: {prompts: 4, samples: 8, drift_samples: 2}
blocks:
  clamp:
    families: [reverse_digits]
    pairs: [[1, 1], [2, 2]]
    steps: 3000
    references: [control]
    arms:
      control: {beta: 1.0}
      A: {beta: 1.0, ref_reset_every: 200}
"""


def rises(to, half, steepness=2.0, start=0.1):
    """Gold that has risen from `start` by half of the way `to` its end at the step `half`."""
    steps = np.asarray(STEPS)
    return pd.Series(start + (to - start) * steps**steepness / (steps**steepness + half**steepness), STEPS)


@pytest.mark.parametrize(("to", "half", "steepness"), [(0.8, 300, 2.0), (0.4, 40, 1.0), (0.02, 500, 3.0)])
def test_a_sigmoid_is_found_through_noise(to, half, steepness):
    noise = np.random.default_rng(0).normal(0, 0.02, len(STEPS))
    high, middle = fit_asymptote(rises(to, half, steepness) + noise, 0.1)
    assert high == pytest.approx(to, abs=0.01)
    assert middle == pytest.approx(half, rel=0.15)


@pytest.mark.parametrize(
    ("gold", "told"),
    [
        (pd.Series(0.11, STEPS), (0.11, np.nan)),  # stands still: no speed
        (pd.Series(np.linspace(0.1, 0.5, 3000), STEPS), (np.nan, np.nan)),  # a line: no end in sight
        (rises(1.0, 3600), (np.nan, np.nan)),  # half of the gain lies beyond the run
        (rises(0.8, 300).where(STEPS < 2500, 0.0), (np.nan, np.nan)),  # a collapse: no sigmoid ends above its end
        (rises(0.04, 1500, 9.0, start=0.9), (0.04, 1500)),  # a fall is a sigmoid, too
    ],
)
def test_what_a_run_does_not_tell_is_not_told(gold, told):
    assert fit_asymptote(gold, 0.9 if gold.iloc[0] > 0.5 else 0.1) == pytest.approx(told, abs=5e-3, nan_ok=True)


def test_the_table_and_the_picture_of_a_clamp(study, add):
    tables = Tables()
    golds = {"control": [pd.Series(BASE, STEPS)] * 2, "A": [rises(0.8, 300, 2.0, BASE), rises(0.6, 900, 4.0, BASE)]}
    for arm, of in golds.items():
        for seed, gold in enumerate(of, 1):
            key = RunKey("reverse_digits", arm, seed, seed, 3000)
            own = {"variant": arm}
            add(tables, key, curve={"gold": list(gold), "entropy": [0.5 * seed] * 3000}, **own)
    (block,) = read_matrix(study(MATRIX)).blocks
    control, moved = summary(block, tables).set_index("arm").drop(columns="family").to_dict("index").values()
    assert control == pytest.approx(
        {"runs": 2, "told": 2, "asymptote": BASE, "half": np.nan, "entropy": 0.75, "since": 0.0}, abs=1e-6, nan_ok=True
    )
    assert (moved["asymptote"], moved["half"]) == (pytest.approx(0.7, abs=1e-3), pytest.approx(600, rel=1e-2))
    # The block's first reset comes after step 200: both arms' gold is counted from the 20 steps before it.
    gain = [gold.loc[2981:].mean() - gold.loc[181:200].mean() for gold in golds["A"]]
    assert moved["since"] == pytest.approx(np.mean(gain))
    gold, entropy, far = clamp(block, tables).axes
    assert [line.get_label() for line in gold.lines] == ["control, n = 2", "A, n = 2"]
    assert gold.lines[1].get_ydata()[-1] == pytest.approx((golds["A"][0] + golds["A"][1]).iloc[-20:].mean() / 2)
    assert entropy.lines[0].get_ydata()[-1] == pytest.approx(0.75)
    assert far.lines[1].get_xydata() == pytest.approx(np.array([[300, 0.8], [900, 0.6]]), rel=1e-2)
    assert clamp(block, Tables()) is None


def unsolved(rates, start=BASE):
    """Reward of a run of two halves in which what is unsolved shrinks at two rates a step."""
    halves = np.repeat(rates, len(STEPS) // 2)
    return pd.Series(1 - (1 - start) * np.exp(-np.cumsum(halves)), STEPS)


@pytest.mark.parametrize(("rates", "expected"), [((1e-4, 1e-4), 1.0), ((4e-4, 0.0), 0.0), ((4e-4, 1e-4), 0.25)])
def test_a_curve_of_one_rate_does_not_slow_down(rates, expected):
    """The middle's mean lies on both sides of the bend, so that a rate of the second half is found a little high."""
    assert slowing(unsolved(rates), BASE) == pytest.approx(expected, abs=0.05)


def test_only_long_runs_without_a_kl_and_with_an_exact_reward_count(study, add):
    tables = Tables()
    asked = MATRIX.replace("[control]", "[plain]").replace("control: {beta: 1.0}", "plain: {}")
    asked = asked.replace("[reverse_digits]", "[reverse_digits, sorting]")
    reward = list(unsolved((4e-4, 1e-4)))
    for family in ("reverse_digits", "sorting"):
        for arm in ("plain", "A"):
            key = RunKey(family, arm, 1, 1, 3000)
            add(tables, key, variant=arm, curve={"reward": reward}, **{"base_pass@1": BASE})
    matrix = read_matrix(study(asked, ("reverse_digits", "sorting")))
    found = slowing_of_plain(matrix.blocks, tables)
    assert list(found.index) == [RunKey("reverse_digits", "plain", 1, 1, 3000)]
    assert found.iloc[0] == pytest.approx(0.25, abs=0.05)
    short = read_matrix(study(asked.replace("3000", "999"), ("reverse_digits", "sorting")))
    assert slowing_of_plain(short.blocks, tables).empty
