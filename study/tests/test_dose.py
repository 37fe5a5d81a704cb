"""The third protocol's `dose`: lines through four strictnesses, and the predictions, worked out by hand."""

import pandas as pd
import pytest
from scipy import stats

from study.dose import (
    away_from_prediction,
    by_share,
    grade_d1,
    grade_d2,
    grades,
    means_by_strictness,
    share_of_base,
    slopes,
)
from study.dose_picture import draw_dose
from study.hierarchical import Contrast
from study.matrix import RunKey, read_matrix
from study.tables import STOPS, Tables, make_frame


FAMILIES = ("ends_a", "ends_b", "ends_c", "ends_d")
MATRIX = f"""
evaluation: {{prompts: 4, samples: 8, drift_samples: 2}}
blocks:
  dose:
    families: [{", ".join(FAMILIES)}]
    pairs: [[1, 51], [2, 52], [3, 53], [3, 63]]
    steps: 3
    references: [plain]
    arms:
      plain: {{}}
      control_target0.3: {{beta: 0.3, kl_target: 0.3}}
"""
CONTROL = "control_target0.3"
PAIRS = ((1, 51), (2, 52), (3, 53), (3, 63))
SHARES = (0.125, 0.375, 0.625, 0.875)  # of every base: .1 of all samples are right
# By pair, one for each share. The shares lie -.375, -.125, .125 and .375 from their mean; the squares' sum is .3125.
GOLD = {
    CONTROL: {
        (1, 51): (0.1, 0.35, 0.6, 0.85),  # a line: 1
        (2, 52): (0.1, 0.3, 0.5, 0.9),  # (.8 · .375 + .2 · .125) / .3125 = 1.04
        (3, 53): (0.2, 0.4, 0.6, 0.8),  # with the other seed (.1, .3, .5, .7): .6 · .375 + .2 · .125 = .25, and so .8
        (3, 63): (0.0, 0.2, 0.4, 0.6),
    },
    "plain": {
        (1, 51): (0.1, 0.1, 0.1, 0.1),
        (2, 52): (0.1, 0.2, 0.2, 0.1),
        (3, 53): (0.1, 0.1, 0.1, 0.2),  # .1 · .375 / .3125 = .12
        (3, 63): (0.1, 0.1, 0.1, 0.2),
    },
}
SLOPES = {CONTROL: [1.0, 1.04, 0.8], "plain": [0.0, 0.0, 0.12]}


@pytest.fixture
def made(study, add):
    (block,) = read_matrix(study(MATRIX, FAMILIES)).blocks
    tables = Tables()
    bases = []
    for place, (family, share) in enumerate(zip(FAMILIES, SHARES, strict=True)):
        for arm, of_pairs in GOLD.items():
            for pair, golds in of_pairs.items():
                row = {"pass@1": golds[place], "greedy": 0.5 * golds[place] + 0.25}
                add(tables, RunKey(family, arm, *pair, 3), **row)
        for base_seed in (1, 2, 3):
            row = {"step": 0, "gold": 0.1, "greedy": 0.3, "reward": 0.1 / share, "kl_to_base": 0.0, "best_of_8": 0.2}
            bases.append(make_frame([row], STOPS, RunKey(family, "plain", base_seed, 0, 3).base))
    tables.stops = pd.concat(bases)
    return block, tables


def test_the_base_s_share(made):
    _, tables = made
    bases = [RunKey(family, "plain", 2, 52, 3).base for family in FAMILIES]
    assert [share_of_base(tables, base) for base in bases] == pytest.approx(SHARES)


def test_the_seeds_of_a_base_are_averaged_first(made):
    points = by_share(*made, CONTROL, "gold")
    assert points.loc[3, "gold"].tolist() == pytest.approx([0.1, 0.3, 0.5, 0.7])
    assert points.loc[3, "share"].tolist() == pytest.approx(SHARES)
    assert len(points) == 3 * 4


def test_the_registered_slopes(made):
    found = {(one.arm, one.outcome): one for one in slopes(*made)}
    assert list(found) == [(arm, outcome) for outcome in ("gold", "greedy") for arm in (CONTROL, "plain")]
    p_values = {}
    for arm, of_bases in SLOPES.items():
        mean = sum(of_bases) / 3
        half = stats.t.ppf(0.975, 2) * stats.sem(of_bases)
        assert found[arm, "gold"].contrast.estimate == pytest.approx((mean, mean - half, mean + half))
        p_values[arm] = stats.ttest_1samp(of_bases, 0).pvalue
        assert found[arm, "greedy"].contrast.value == pytest.approx(mean / 2)
        assert found[arm, "greedy"].adjusted is None
    # Holm over two: the smaller p twice, the larger once.
    assert p_values[CONTROL] < p_values["plain"]
    assert found[CONTROL, "gold"].adjusted == pytest.approx(2 * p_values[CONTROL])
    assert found["plain", "gold"].adjusted == pytest.approx(p_values["plain"])


def test_a_base_without_all_strictnesses_has_no_line(made):
    block, tables = made
    fewer = tables.without([RunKey("ends_b", CONTROL, 2, 52, 3)])
    control, plain = slopes(block, fewer)[:2]
    assert control.contrast.value == pytest.approx((1.0 + 0.8) / 2)
    assert plain.contrast.value == pytest.approx(0.04)
    assert slopes(block, Tables()) == []


def test_how_far_the_control_lies_from_the_prediction(made):
    away = away_from_prediction(*made)
    # Of the second strictness .35, .3 and .3, less .375 - .05.
    assert away["ends_b"] == pytest.approx(0.95 / 3 - 0.325)
    assert away.index.tolist() == list(FAMILIES)


NEAR = pd.Series([0.07, -0.07, 0.0, 0.0])
FAR = pd.Series([0.0, -0.08, 0.0, 0.0])


@pytest.mark.parametrize(
    "value, half, away, met, refuted",
    [
        (0.9, 0.1, NEAR, True, False),
        (0.8, 0.5, NEAR, True, False),
        (0.9, 0.1, FAR, False, False),
        (1.2, 0.1, NEAR, False, False),
        (0.4, 0.2, NEAR, False, False),  # the interval reaches .6
        (0.4, 0.09, NEAR, False, True),
    ],
)
def test_d1(value, half, away, met, refuted):
    assert grade_d1(contrast(value, half), away) == (met, refuted)


@pytest.mark.parametrize(
    "value, half, met, refuted",
    [
        (0.3, 0.5, True, False),
        (-0.3, 0.01, True, False),
        (0.4, 0.2, False, False),  # the interval reaches into [-.3, .3]
        (0.4, 0.09, False, True),
        (-0.5, 0.1, False, True),
    ],
)
def test_d2(value, half, met, refuted):
    assert grade_d2(contrast(value, half)) == (met, refuted)


def contrast(value, half):
    """One whose interval, of five bases, is `half` to either side."""
    return Contrast(value, half / float(stats.t.ppf(0.975, 4)), 4)


def test_what_the_tables_say_in_one(made):
    """Means over bases; the control's slopes .8 to 1.04 and plain's 0 to .12 meet both predictions."""
    block, tables = made
    means = means_by_strictness(block, tables)
    assert means["share"].tolist() == pytest.approx(SHARES)
    assert means[f"{CONTROL}, gold"]["ends_b"] == pytest.approx((0.35 + 0.3 + 0.3) / 3)
    assert means["plain, greedy"]["ends_a"] == pytest.approx(0.5 * 0.1 + 0.25)
    assert means["away"].tolist() == pytest.approx(away_from_prediction(block, tables).tolist())
    assert grades(block, tables) == {"D1": (True, False), "D2": (True, False)}
    assert grades(block, Tables()) == {}


def test_the_picture_has_every_mean(made):
    """Of each arm and outcome a point for each strictness, at its share and its score."""
    block, tables = made
    means = means_by_strictness(block, tables)
    panels = draw_dose(block, tables).axes
    for panel, outcome in zip(panels, ("gold", "greedy"), strict=True):
        drawn = {line.get_label(): line.get_data() for line in panel.lines if line.get_marker() == "o"}
        for name, arm in (("control", CONTROL), ("plain", "plain")):
            shares, scores = drawn[name]
            assert list(shares) == pytest.approx(SHARES)
            assert list(scores) == pytest.approx(means[f"{arm}, {outcome}"].tolist())
    assert draw_dose(block, Tables()) is None


def test_the_page_says_it(made, section_of):
    page = section_of(*made)
    assert "| ends_b | 0.375 | 0.317 | 0.408 | 0.133 | 0.317 | -0.008 |" in page
    assert f"| {CONTROL} | sampled | 3 | +0.947 [" in page
    assert "D1 is met, and not refuted." in page
    # Of the last strictness .85 - .1, .9 - .1 and .7 - .2; greedy half of that.
    assert "| ends_d | +0.683 [" in page
    assert "| +0.342 [" in page.partition("| ends_d | +0.683")[2].partition("\n")[0]
