"""The third protocol's `forget2`: the manipulation check, the differences, and the prediction, worked out by hand."""

import pandas as pd
import pytest
from scipy import stats

from study.forget2 import acting, differences, is_refuted, kl_on_others, means, share_kept
from study.hierarchical import Contrast
from study.matrix import RunKey, read_matrix
from study.tables import POINTS, Tables, make_frame


MATRIX = """
evaluation: {prompts: 4, samples: 8, drift_samples: 2}
blocks:
  forget2:
    families: [reverse_digits]
    pairs: [[1, 71], [2, 71], [3, 71], [3, 72]]
    steps: 3
    others: [sorting@3, sums@3]
    registered: {outcomes: [kept], differences: []}
    references: [plain]
    arms:
      plain: {}
      control_beta0.3: {beta: 0.3}
      control_beta1: {beta: 1.0}
      replayed_kl: {trained_by: study.replayed_kl}
"""
PAIRS = ((1, 71), (2, 71), (3, 71), (3, 72))
# By pair: KL on sorting and sums, and gold of both at the end, of which the base has .9.
ENDS = {
    "plain": [(0.4, 0.7), (0.4, 0.5), (0.4, 0.6), (0.4, 0.4)],
    "control_beta0.3": [(0.4, 0.7), (0.1, 0.5), (0.2, 0.6), (0.2, 0.4)],  # .4, .1, .2: the mean is above .2
    "control_beta1": [(0.3, 0.8), (0.1, 0.7), (0.1, 0.8), (0.3, 0.6)],  # .3, .1, .2: it is .2 exactly
    "replayed_kl": [(0.1, 0.9), (0.1, 0.8), (0.1, 0.7), (0.1, 0.7)],
}


def points(key, kl, gold):
    rows = [{"step": 0, "task": "reverse_digits", "gold": 0.1}]
    rows += [{"step": 0, "task": task, "gold": 0.9, "kl_to_base": 0.0} for task in ("sorting@3", "sums@3")]
    for step, apart in ((2, 0.0), (3, 0.05)):
        rows.append({"step": step, "task": "reverse_digits", "gold": 0.8, "kl_to_base": 7.0})
        at_the_end = gold if step == 3 else 0.1
        rows.append({"step": step, "task": "sorting@3", "gold": at_the_end - apart, "kl_to_base": kl - apart})
        rows.append({"step": step, "task": "sums@3", "gold": at_the_end + apart, "kl_to_base": kl + apart})
    return make_frame(rows, POINTS, key)


@pytest.fixture
def made(study, add):
    (block,) = read_matrix(study(MATRIX)).blocks
    tables = Tables()
    parts = []
    for arm, ends in ENDS.items():
        for pair, (kl, gold) in zip(PAIRS, ends, strict=True):
            key = RunKey("reverse_digits", arm, *pair, 3)
            add(tables, key, **{"pass@1": 0.8, "greedy": 0.9})
            parts.append(points(key, kl, gold))
    tables.points = pd.concat(parts)
    return block, tables


def test_the_manipulation_check(made):
    """An arm acts if its KL on the other tasks is at most half of plain's, a mean over bases."""
    block, tables = made
    assert kl_on_others(tables, RunKey("reverse_digits", "control_beta1", 3, 72, 3)) == pytest.approx(0.3)
    found = means(block, tables)
    assert found.index.tolist() == block.arms
    assert found["kl"].tolist() == pytest.approx([0.4, 0.7 / 3, 0.2, 0.1])
    assert found["acts"].tolist() == [False, False, True, True]
    assert found.loc["plain", ["kept", "lost", "gold", "greedy"]].tolist() == pytest.approx([1.7 / 3, 1 / 3, 0.8, 0.9])
    assert acting(block, tables) == ["control_beta1", "replayed_kl"]
    assert acting(block, Tables()) == []


def test_what_acts_is_tested(made):
    found = {one.arm: one for one in differences(*made)}
    expected = {"control_beta1": [0.1, 0.2, 0.2], "replayed_kl": [0.2, 0.3, 0.2]}
    assert found.keys() == expected.keys()
    p_values = {}
    for arm, of_bases in expected.items():
        half = stats.t.ppf(0.975, 2) * stats.sem(of_bases)
        mean = sum(of_bases) / 3
        assert found[arm].contrast.estimate == pytest.approx((mean, mean - half, mean + half))
        p_values[arm] = stats.ttest_1samp(of_bases, 0).pvalue
    assert found["replayed_kl"].adjusted == pytest.approx(2 * min(p_values.values()))
    assert found["control_beta1"].adjusted == pytest.approx(max(max(p_values.values()), 2 * min(p_values.values())))


def test_the_share_of_the_loss_that_is_kept(made):
    """Plain loses .2, .4 and .4 (.3 and .5) of .9, the replayed KL 0, .1 and .2: 1, .75 and .5 are kept."""
    block, tables = made
    share = share_kept(block, tables)
    assert share.value == pytest.approx(0.75)
    assert share.error == pytest.approx(stats.sem([1, 0.75, 0.5]))
    assert not is_refuted(share)
    tables.points.loc[tables.points.index.get_level_values("arm") == "replayed_kl", "kl_to_base"] = 0.3
    assert share_kept(block, tables) is None


@pytest.mark.parametrize("value, half, refuted", [(0.4, 0.2, False), (0.4, 0.09, True), (0.7, 0.1, False)])
def test_when_the_prediction_is_refuted(value, half, refuted):
    assert is_refuted(Contrast(value, half / float(stats.t.ppf(0.975, 2)), 2)) is refuted


def test_the_page_says_it(made, section_of):
    page = section_of(*made)
    assert "| control_beta0.3 | 0.233 | 0.567 | 0.333 | 0.800 | 0.900 | no |" in page
    assert "| control_beta1 | 0.200 | 0.733 | 0.167 | 0.800 | 0.900 | yes |" in page
    assert "Gold of sorting and sums, replayed_kl less plain: +0.233" in page
    assert "keeps 75% [13%, 137%]; that it keeps half is not refuted." in page
