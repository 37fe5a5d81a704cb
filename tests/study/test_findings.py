"""Scores, differences and shares from tables whose answers are known."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from study.differences import ELSE, H0, H2, Share, compared, differences, kept_partner, over_families, shares
from study.hierarchical import Contrast
from study.matrix import RunKey, read_matrix
from study.pages import write_pages
from study.pictures import forest, learning_curves, mean_with_band, point, reward, span_of, styles
from study.runner import clock, seconds_left
from study.scores import reset_steps, reward_kept, scores
from study.tables import Tables, frame, read_tables
from trl_prorl.errors import InputError


ROOT = Path(__file__).parent.parent.parent
MATRIX = """
evaluation: {prompts: 40, samples: 8, drift_samples: 2}
blocks:
  core:
    families: [reverse_digits]
    pairs: [[1, 1], [2, 2], [3, 3]]
    steps: 12
    suffix: _x
    arms:
      plain: {}
      A: {beta: 1.0, ref_reset_every: 4}
      B: {beta_old: 1.0}
      B_beta_old3: {beta_old: 3.0}
      C_hard: {beta: 1.0, ref_reset_every: 4, optimizer_reset: hard}
      C_hard_K2: {beta: 1.0, ref_reset_every: 2, optimizer_reset: hard}
"""
# Correct of 8 on every prompt, for base seeds 1, 2, 3. Bases have 2 of 8.
CORRECT = {"plain": (4, 5, 6), "A": (5, 6, 7), "B": (4, 5, 6), "C_hard": (5, 6, 8), "B_beta_old3": (0, 0, 0)}
FAMILIES = ("reverse_digits", "sorting", "sums")
VARIANT = {"plain": "plain", "A": "A", "B": "B", "C_hard": "C", "B_beta_old3": "B"}


@pytest.fixture
def block(study):
    (block,) = read_matrix(study(MATRIX)).blocks
    return block


@pytest.fixture(scope="module")
def made(add):
    tables = Tables()
    for arm, counts in CORRECT.items():
        for seed, count in enumerate(counts, start=1):
            key = RunKey("reverse_digits", f"{arm}_x", seed, seed, 12)
            add(tables, key, prompts=40, correct=[count] * 40, variant=VARIANT[arm])
    return tables


@pytest.fixture
def tables(made):
    return deepcopy(made)


def test_scores(block, tables):
    found = {one.arm: one for one in scores(block, tables)}
    assert list(found) == ["plain_x", "A_x", "B_x", "B_beta_old3_x", "C_hard_x"]  # in the matrix's order
    plain = found["plain_x"]
    # 0.5, 0.625, 0.75: mean 0.625, s = 0.125, t(2) = 4.302653
    assert plain.values["pass@1"].value == 0.625 and plain.pairs == 3 and plain.bases["pass@1"].value == 0.25
    assert plain.gains["pass@1"].value == 0.375 and plain.gains["pass@1"].low < 0.375  # less 2 of 8 of each base
    assert plain.values["pass@1"].high - 0.625 == pytest.approx(4.302653 * 0.125 / 3**0.5, rel=0.05)
    assert plain.values["pass@8"].value == 1 and plain.values["greedy"].value == 1
    none = found["B_beta_old3_x"]
    assert none.values["pass@8"].value == 0 and none.gains["pass@8"].value == -none.bases["pass@8"].value < -0.8
    assert none.gains["greedy"].value == 0


def test_what_is_held_against_what(block):
    assert kept_partner(block, "C_hard_x") == "A_x" and kept_partner(block, "C_hard_K2_x") is None
    assert kept_partner(block, "A_x") is None
    found = {(arm, reference): hypothesis for arm, reference, hypothesis in compared(block)}
    assert {pair for pair, hypothesis in found.items() if hypothesis == H0} == {("A_x", "plain_x"), ("B_x", "plain_x")}
    assert {pair for pair, hypothesis in found.items() if hypothesis == H2} == {("C_hard_x", "A_x")}
    assert found["B_beta_old3_x", "plain_x"] == found["B_x", "A_x"] == found["C_hard_K2_x", "A_x"] == ELSE


def test_differences(block, tables):
    found = {(one.arm, one.reference): one for one in differences(block, tables)}
    a = found["A_x", "plain_x"]
    assert a.contrast.estimate == pytest.approx((0.125,) * 3) and a.verdict == "higher" and a.pairs == 3
    assert found["B_x", "plain_x"].verdict == "equivalent" and found["B_x", "plain_x"].contrast.p_value == 1
    # 0, 0, 0.125 above A: a mean of 0.0417 with an error of 0.0417
    hard = found["C_hard_x", "A_x"]
    assert hard.contrast.value == pytest.approx(0.125 / 3) and hard.verdict == "not told apart"
    assert ("C_hard_K2_x", "A_x") not in found  # without runs
    exploratory = [one for one in found.values() if one.hypothesis == ELSE]
    assert all(one.adjusted >= one.contrast.p_value for one in exploratory) and len(exploratory) == 4
    least = min(exploratory, key=lambda one: one.contrast.p_value)
    assert least.adjusted == pytest.approx(4 * least.contrast.p_value)  # Holm: the least of four, four times


def test_differences_of_pass_at_8_are_exploratory(block, tables):
    # At least one of eight samples is right in every run but those of B_beta_old3; then in three quarters of A's.
    for share in (1.0, 0.75):
        right = {"A_x": share, "B_beta_old3_x": 0.0}
        found = differences(block, tables, k=8)
        assert {one.hypothesis for one in found} == {ELSE} and all(one.exploratory for one in found)
        for one in found:
            expected = right.get(one.arm, 1.0) - right.get(one.reference, 1.0)
            assert one.contrast.value == pytest.approx(expected, abs=1e-12)
        of_a = tables.prompts.index.get_level_values("arm") == "A_x"
        tables.prompts.loc[of_a & (tables.prompts["prompt"] < 10), "correct"] = 0  # of 40


def test_a_difference_of_no_importance_is_not_h2(block, tables):
    (hard,) = (one for one in differences(block, tables) if one.hypothesis == H2)
    for value, error, verdict in (
        (0.015, 0.001, "higher, by no more than 0.02"),
        (-0.03, 0.001, "lower"),
        (0.03, 0.1, "not told apart"),
        (0.03, float("nan"), "one base: no interval"),
        (-0.004, 0.006, "not told apart"),  # 0.016 from the margin: t = 2.67, and t(0.95, 2) = 2.92
        (-0.004, 0.005, "equivalent"),  # t = 3.2
    ):
        changed = type(hard)(**{**vars(hard), "contrast": Contrast(value, error, 2)})
        assert changed.verdict == verdict


def test_shares(block, tables):
    found = {(one.arm, one.reference, one.of): one for one in shares(block, tables)}
    assert found["B_x", "A_x", "score"].ratio.value == pytest.approx(0.625 / 0.75)
    gain = found["B_x", "A_x", "gain over base"]
    assert gain.ratio.value == pytest.approx(0.375 / 0.5)
    assert found["B_x", "C_hard_x", "score"].ratio.value == pytest.approx(15 / 19)
    assert found["B_beta_old3_x", "A_x", "score"].ratio.value == 0
    assert gain.verdict(0.5) == "undecided" or gain.ratio.low >= 0.5


def test_a_share_that_is_met_or_not():
    one = Share("core", "sums", "B", "A", "score", Contrast(0.85, 0.01, 4).estimate, 5)
    assert [one.verdict(share) for share in (0.8, 0.85, 0.9)] == ["met", "undecided", "not met"]
    assert Share("core", "sums", "B", "A", "score", None, 5).verdict(0.8) == "undecided"


def test_means_over_families(study, tables, add):
    matrix = read_matrix(study(MATRIX.replace("[reverse_digits]", "[reverse_digits, sorting, sums]"), FAMILIES))
    (block,) = matrix.blocks
    assert over_families(block, tables) == []  # one family alone
    # C_hard is 0, 0, 1 of 8 above A in reversing, and 0, 0, −1 in sorting: by pairs nothing is left.
    for arm, counts in (("A", (4, 4, 4)), ("C_hard", (4, 4, 3))):
        for seed, count in enumerate(counts, start=1):
            add(tables, RunKey("sorting", f"{arm}_x", seed, seed, 12), prompts=40, correct=[count] * 40)
    # A family that is not complete yet does not take the others' pairs away.
    for arm in ("A_x", "C_hard_x"):
        add(tables, RunKey("sums", arm, 1, 1, 12), prompts=40, correct=[4] * 40)
    (one,) = over_families(block, tables)
    assert (one.arm, one.reference, one.family, one.pairs) == ("C_hard_x", "A_x", "mean of 2", 3)
    assert (one.contrast.value, one.contrast.error, one.contrast.freedom) == (0, pytest.approx(0), 2)
    assert one.exploratory and one.alone.error == pytest.approx(0)


def test_families_draw_their_questions_apart(study, add):
    """Questions alone vary, alike in both families: the mean's error is smaller by √2."""
    matrix = read_matrix(study(MATRIX.replace("[reverse_digits]", "[reverse_digits, sorting]"), FAMILIES))
    (block,), tables = matrix.blocks, Tables()
    for family in block.families:
        for arm, correct in (("plain", [0] * 40), ("A", [8] * 10 + [0] * 30)):
            for seed in (1, 2, 3):
                add(tables, RunKey(family, f"{arm}_x", seed, seed, 12), prompts=40, correct=correct)
    ((mean,), (one, _)) = over_families(block, tables), differences(block, tables)
    assert mean.contrast.error == pytest.approx(one.contrast.error / 2**0.5, rel=0.05)


def test_the_end_by_the_best(tables, add):
    key = RunKey("reverse_digits", "A_x", 1, 1, 12)

    def with_rewards(rewards):
        add(tables, key, prompts=40, steps=len(rewards), curve={"reward": rewards})
        return reward_kept(tables, key)

    # Windows of 10 steps have means of 0.8, 0.7 and 0.6; the last 10 steps have 0.6.
    assert with_rewards([1.0] * 8 + [0.0, 0.0, 0.0, 0.0]) == pytest.approx(0.6 / 0.8)
    assert with_rewards([0.5] * 12) == pytest.approx(1) and with_rewards([0.0] * 12) == 0
    assert with_rewards([0.5] * 11 + [float("nan")]) == 0 and with_rewards([0.5] * 11) == 0  # stopped at step 11


def test_resets_and_the_steps_between_them(block, tables, add):
    for seed, steps in ((1, (3, 6, 11)), (2, (4, 8)), (3, (5,))):
        events = ["kl > 0.05" if step in steps else "" for step in range(1, 13)]
        key = RunKey("reverse_digits", "A_x", seed, seed, 12)
        add(tables, key, prompts=40, resets=len(steps), curve={"event": events})
    found = {one.arm: one for one in scores(block, tables)}
    assert (found["A_x"].resets, found["A_x"].apart) == ([3, 2, 1], [3, 5, 4]) and found["plain_x"].apart == []


def test_the_study_s_resets_and_collapses_are_those_of_its_curves():
    """What the runner wrote from a run's own record, and what the tables alone give, run by run."""
    tables = read_tables(ROOT)
    assert len(tables.runs) >= 295
    for key, row in tables.runs.iterrows():
        key = RunKey(*key)
        assert len(reset_steps(tables, key)) == row["resets"]
        assert (reward_kept(tables, key) < 0.5) == bool(row["collapsed"])


def test_exploratory_and_registered(block, tables):
    found = {(one.arm, one.reference): one for one in differences(block, tables)}
    assert not found["A_x", "plain_x"].exploratory and not found["C_hard_x", "A_x"].exploratory
    assert found["C_hard_x", "plain_x"].exploratory and found["B_x", "A_x"].exploratory
    added = replace(block, name="mild")
    assert all(one.exploratory for one in differences(added, tables))
    for one, filled in ((found["A_x", "plain_x"], True), (found["B_x", "A_x"], False)):
        axes = Figure().subplots()
        point(axes, 1, one, "black")
        assert (axes.lines[0].get_markerfacecolor() != "white") == filled


def test_the_t_interval_has_a_correction_of_its_own(block, tables):
    found = [one for one in differences(block, tables) if one.hypothesis == ELSE]
    values = sorted((one.alone.p_value, one.adjusted_alone) for one in found)
    assert values[0][1] == pytest.approx(min(1, 4 * values[0][0])) and all(high >= low for low, high in values)


@pytest.mark.slow
def test_pictures_are_the_same_bytes_from_the_same_tables(study, tables):
    root = study(MATRIX)
    matrix = read_matrix(root)
    (root / "docs" / "study").mkdir(parents=True)
    first = {path.name: path.read_bytes() for path in write_pages(root, matrix, tables)}
    assert first == {path.name: path.read_bytes() for path in write_pages(root, matrix, tables)}
    assert set(first) == {"overview.png", "core_curves.png", "core_forest.png", "findings.md"}
    page = first["findings.md"].decode()
    assert "+0.125 [+0.125, +0.125]" in page and "B_x" in page
    assert "Co-primary, by the [protocol]" in page and "Exploratory" not in page
    (root / "recipes/study/matrix.yaml").write_text(MATRIX.replace("core:", "mild:"))
    write_pages(root, read_matrix(root), tables)
    assert "Exploratory, whatever the hypothesis" in (root / "docs/study/findings.md").read_text()
    with pytest.raises(InputError, match="none of these runs is finished"):
        write_pages(root, matrix, Tables())


def test_curves_and_forest(block, tables):
    look = styles(block, tables)
    assert len({(style["color"], style["linestyle"]) for style in look.values()}) == len(look) == 5
    figure = learning_curves(block, tables)
    assert len(figure.axes) == 2 and len(figure.axes[0].lines) == 5 and len(figure.axes[1].lines) == 4 + 1
    found = differences(block, tables)
    picture = forest(block, tables, found)
    assert len(picture.axes) == 2 and len({panel.get_xlim() for panel in picture.axes}) == 1
    assert all("B optimises a different objective" in one.get_supxlabel() for one in (figure, picture))
    assert "95 % t-intervals" in figure.get_supxlabel() and len(figure.axes[0].collections) == 5  # bands of five arms
    assert learning_curves(block, Tables()) is None and forest(block, tables, []) is None


def test_a_run_that_stopped_has_no_reward_afterwards(tables, add):
    key = RunKey("reverse_digits", "A_x", 1, 1, 12)
    add(tables, key, prompts=40, steps=5)
    curve = reward(tables, key, 10)
    # Rewards are 0, 0.1, 0.2 …: the running mean at step 5 is 0.2.
    assert list(curve.index) == list(range(1, 13)) and curve[5] == pytest.approx(0.2) and (curve[6:] == 0).all()
    assert reward(tables, key, 2)[5] == pytest.approx(0.35)
    assert [span_of(steps) for steps in (24, 240, 480, 1000)] == [10, 10, 20, 42]


def test_a_band_is_the_t_interval():
    band = mean_with_band([pd.Series([0.0, 1.0]), pd.Series([1.0, 1.0])])
    assert list(band["mean"]) == [0.5, 1.0]
    assert band["high"][0] - 0.5 == pytest.approx(12.7062 * 0.5, rel=1e-4) and band["low"][1] == 1.0


def test_the_estimate_goes_by_family_and_steps():
    seconds = {("sums", "A", 1, 1, 100): 100.0, ("sums", "B", 1, 1, 100): 200.0, ("digits", "A", 1, 1, 100): 30.0}
    finished = frame().reindex(list(seconds)).assign(seconds=list(seconds.values()))
    assert seconds_left([RunKey("sums", "A", 2, 2, 100)], finished, jobs=1) == 150
    assert seconds_left([RunKey("sums", "A", 2, 2, 100)] * 4, finished, jobs=2) == 300
    assert seconds_left([RunKey("digits", "A", 2, 2, 1000)], finished, jobs=1) == 300  # by the step
    assert seconds_left([RunKey("other", "A", 2, 2, 10)], finished, jobs=1) == pytest.approx(11)
    assert seconds_left([RunKey("sums", "A", 2, 2, 100)], frame(), 1) is None and seconds_left([], frame(), 2) == 0
    said = [clock(seconds) for seconds in (10, 90, 3600, 7530)]
    assert said == ["under a minute", "2 min", "1 h 00 min", "2 h 06 min"]
