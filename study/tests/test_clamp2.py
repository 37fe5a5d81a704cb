"""The third protocol's `clamp2`: what resets give back, pass@k from the tables, and the predictions, by hand."""

from pathlib import Path

import pandas as pd
import pytest
from scipy import stats

from study.clamp2 import (
    all_given_back,
    bounds,
    c1_is_refuted,
    c2_is_refuted,
    c3_is_refuted,
    c4_is_refuted,
    less_base,
    mean_bounds,
    mean_pass_at_k,
    pass_at,
    refuted,
)
from study.clamp2_picture import draw_given_back, draw_pass_at_k
from study.hierarchical import Contrast
from study.matrix import RunKey, read_matrix
from study.registered import registered
from study.tables import PASSK, Tables, make_frame


ROOT = Path(__file__).parent.parent.parent
ARMS = {
    "plain": "{}",
    "control_beta1": "{beta: 1.0}",
    "control_beta10": "{beta: 10.0}",
    "A_beta1": "{beta: 1.0, ref_reset_every: 40}",
    "A_beta10": "{beta: 10.0, ref_reset_every: 40}",
    "A_K200_beta1": "{beta: 1.0, ref_reset_every: 200}",
    "A_K200_beta10": "{beta: 10.0, ref_reset_every: 200}",
    "B_beta_old1": "{beta_old: 1.0}",
    "B_beta_old10": "{beta_old: 10.0}",
}
LINES = "\n".join(f"      {arm}: {keys}" for arm, keys in ARMS.items())
MATRIX = f"""
evaluation: {{prompts: 4, samples: 8, drift_samples: 2}}
blocks:
  clamp2:
    families: [reverse_digits]
    pairs: [[1, 61], [2, 62], [3, 63]]
    steps: 3
    references: [plain]
    registered: {{outcomes: [gold], differences: [[B_beta_old1, plain], [B_beta_old10, plain]]}}
    passk: {{prompts: 2, samples: 4, arms: [plain]}}
    arms:
{LINES}
"""
PAIRS = ((1, 61), (2, 62), (3, 63))
# On bases 1, 2 and 3. Plain less the control, in the mean: .3 at beta = 1, .4 at 10.
GOLD = {
    "plain": (0.5, 0.6, 0.4),
    "control_beta1": (0.2, 0.2, 0.2),
    "control_beta10": (0.1, 0.1, 0.1),
    "A_beta1": (0.4, 0.4, 0.4),
    "A_beta10": (0.2, 0.2, 0.2),
    "A_K200_beta1": (0.3, 0.3, 0.3),
    "A_K200_beta10": (0.1, 0.2, 0.0),
    "B_beta_old1": (0.4, 0.6, 0.4),
    "B_beta_old10": (0.3, 0.39, 0.2),
}
RIGHT = {1: (2, 0), 2: (1, 1), 3: (4, 0)}  # of plain's four samples, question by question
RIGHT_OF_BASE = {1: (1, 0), 2: (1, 0), 3: (0, 0)}


def counts(right, key):
    rows = [{"prompt": place, "n": 4, "correct": one} for place, one in enumerate(right)]
    return make_frame(rows, PASSK, key)


@pytest.fixture
def made(study, add):
    (block,) = read_matrix(study(MATRIX)).blocks
    tables = Tables()
    for arm, golds in GOLD.items():
        for pair, gold in zip(PAIRS, golds, strict=True):
            add(tables, RunKey("reverse_digits", arm, *pair, 3), **{"pass@1": gold})
    parts = []
    for pair in PAIRS:
        key = RunKey("reverse_digits", "plain", *pair, 3)
        parts.append(counts(RIGHT[pair[0]], key))
        parts.append(counts(RIGHT_OF_BASE[pair[0]], key.base))
    tables.passk = pd.concat(parts)
    return block, tables


def test_what_is_given_back(made):
    block, tables = made
    back = all_given_back(block, tables)
    assert back.loc[1].tolist() == pytest.approx([2 / 3, 1 / 3])  # K = 40, K = 200
    assert back.loc[10].tolist() == pytest.approx([1 / 4, 0])
    # A base that lacks an arm is left out of all three means: .5 - .2 and .4 - .2 are left.
    fewer = tables.without([RunKey("reverse_digits", "A_beta1", 2, 62, 3)])
    assert all_given_back(block, fewer).loc[1].tolist() == pytest.approx([0.2 / 0.25, 1 / 3])


def test_a_control_that_does_not_clamp_is_not_tested(made):
    block, tables = made
    tables.runs.loc[tables.runs.index.get_level_values("arm") == "control_beta10", "gold"] = 0.5
    back = all_given_back(block, tables)
    assert back.loc[10].isna().all()
    assert c1_is_refuted(back) is False  # by the other beta alone
    assert c2_is_refuted(back) is None
    assert c1_is_refuted(back.loc[[10]]) is None


@pytest.mark.parametrize(
    "often, rarely, first, second",
    [
        ((0.6, 0.3), (0.5, 0.2), False, False),  # at beta = 1 and 10
        ((0.6, 0.2), (0.5, 0.2), True, False),
        ((0.6, 0.6), (0.5, 0.2), False, True),
        ((0.4, 0.3), (0.5, 0.2), True, False),
        ((0.6, 0.3), (0.2, 0.2), False, True),
    ],
)
def test_c1_and_c2(often, rarely, first, second):
    back = pd.DataFrame({40: often, 200: rarely}, index=[1, 10])
    assert c1_is_refuted(back) is first
    assert c2_is_refuted(back) is second


@pytest.mark.parametrize(
    "value, half, third, fourth",
    [
        (0.0, 0.01, False, False),
        (0.1, 0.06, False, False),
        (0.1, 0.04, True, False),
        (-0.1, 0.06, False, True),
        (-0.1, 0.04, True, True),
        (-0.1, 0.2, False, False),
    ],
)
def test_c3_and_c4(value, half, third, fourth):
    contrast = Contrast(value, half / float(stats.t.ppf(0.975, 2)), 2)
    assert c3_is_refuted(contrast) is third
    assert c4_is_refuted(contrast) is fourth


def test_pass_at_k_of_arms_and_base(made):
    block, tables = made
    scores = pass_at(block, tables, 2)
    # Two of four right: a pair misses both in one case of six; one of four: in three of six.
    assert scores["plain"].tolist() == pytest.approx([5 / 12, 1 / 2, 1 / 2])
    assert scores["base"].tolist() == pytest.approx([1 / 4, 1 / 4, 0])
    assert list(scores) == ["plain", "base"]
    assert pass_at(block, tables, 4).loc[(1, 61)].tolist() == [0.5, 0.5]
    # The bound at k = 4 is 1 less the square of what a pair misses.
    assert bounds(block, tables, 4)["plain"].tolist() == pytest.approx([1 - (7 / 12) ** 2, 3 / 4, 3 / 4])


def test_pass_at_k_less_the_base_s(made):
    block, tables = made
    gain = less_base(block, tables, "plain", 4)
    values = [0, 0.5, 0.5]  # .5 - .5, 1 - .5, .5 - 0
    assert gain.value == pytest.approx(1 / 3)
    assert gain.error == pytest.approx(stats.sem(values))
    assert less_base(block, tables, "A_beta1", 4) is None
    assert less_base(block, Tables(), "plain", 4) is None


def test_the_real_block_registers_six_tests(add):
    (block,) = read_matrix(ROOT).selected(["clamp2"]).blocks
    assert set(block.arms) == set(ARMS)
    tables = Tables()
    for run in block.runs:
        add(tables, run.key, **{"pass@1": GOLD[run.key.arm][run.key.base_seed - 1]})
    tested = [(row["arm"], row["less"]) for row in registered(block, tables) if "gold" in row["adjusted"]]
    assert sorted(tested) == [
        ("A_K200_beta1", "control_beta1"),
        ("A_K200_beta10", "control_beta10"),
        ("A_beta1", "control_beta1"),
        ("A_beta10", "control_beta10"),
        ("B_beta_old1", "plain"),
        ("B_beta_old10", "plain"),
    ]
    counted = {run.key.arm for run in block.runs if run.evaluation.get("passk") == {"prompts": 128, "samples": 256}}
    assert counted == {"plain", "control_beta10", "A_K200_beta10", "B_beta_old10"}


def test_what_becomes_of_the_predictions(made):
    """By the numbers above: more is given back by K = 40, and by the weaker KL; B at 10 is .2 below plain."""
    block, tables = made
    assert refuted(block, tables) == {
        "C1": False,
        "C2": False,
        "C3 of B_beta_old1": False,  # -.1, 0 and 0: the interval reaches 0
        "C3 of B_beta_old10": True,
        "C4": False,
    }
    tables.runs = tables.runs.drop([("reverse_digits", "A_beta1", *pair, 3) for pair in PAIRS])
    assert refuted(block, tables).keys() == {"C3 of B_beta_old1", "C3 of B_beta_old10", "C4"}
    assert refuted(block, Tables()) == {}
    assert mean_pass_at_k(block, tables).loc[2].tolist() == pytest.approx([17 / 36, 1 / 6])
    assert mean_bounds(block, tables).loc[4, "plain"] == pytest.approx((1 - (7 / 12) ** 2 + 3 / 4 + 3 / 4) / 3)


def test_the_picture_has_every_pass_at_k(made):
    """Of plain and of the base, with the bounds dotted."""
    block, tables = made
    (panel,) = draw_pass_at_k(block, tables).axes
    named = {line.get_label(): line for line in panel.lines if not line.get_label().startswith("_")}
    assert list(named) == ["base", "plain"]
    scores = mean_pass_at_k(block, tables)
    highest = mean_bounds(block, tables)
    for arm, line in named.items():
        assert list(line.get_xdata()) == [1, 2, 4]
        assert list(line.get_ydata()) == pytest.approx(scores[arm].tolist(), nan_ok=True)
    dotted = [list(line.get_ydata()) for line in panel.lines if line.get_linestyle() == ":"]
    assert dotted[1] == pytest.approx(highest["plain"].tolist(), nan_ok=True)
    assert draw_pass_at_k(block, Tables()) is None


def test_the_picture_of_what_is_given_back(made):
    """By coefficient: the control, A by its resets, rare ones first, and B, on a line for plain."""
    block, tables = made
    weak, strong = draw_given_back(block, tables).axes
    assert (weak.get_title(), strong.get_title()) == ("β = 1", "β = 10")
    for panel, wanted in ((weak, (0.2, 0.3, 0.4, 1.4 / 3)), (strong, (0.1, 0.1, 0.2, 0.89 / 3))):
        means = [line.get_xydata()[0] for line in panel.lines if line.get_marker() == "o"]
        assert [place for place, _ in means] == [0, 1, 2, 3]
        assert [mean for _, mean in means] == pytest.approx(wanted)
        (plain,) = [line for line in panel.lines if line.get_label() == "plain"]
        assert plain.get_ydata() == pytest.approx([0.5, 0.5])
    bases = [sorted(line.get_ydata()) for line in strong.lines if line.get_marker() == "."]
    assert bases[1] == pytest.approx([0, 0.1, 0.2])
    without_plain = tables.without([RunKey("reverse_digits", "plain", *pair, 3) for pair in PAIRS])
    assert draw_given_back(block, without_plain) is None


def test_the_page_says_it(made, section_of):
    page = section_of(*made)
    assert "| 1 | 0.667 | 0.333 |\n| 10 | 0.250 | 0.000 |" in page
    assert "| 2 | 0.472 | 0.472 | 0.167 | 0.167 |" in page
    assert "pass@4, plain less the base: +0.333 [−0.384, +1.050], over bases." in page
    assert "C3 of B_beta_old1 is not refuted." in page
    assert "C3 of B_beta_old10 is refuted." in page
