"""Scores, differences and shares from tables whose answers are known."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from study.differences import ELSE, H0, H2, compared, differences, is_share_kept, over_families, shares, verdict
from study.findings import write_pages
from study.hierarchical import Contrast
from study.matrix import RunKey, read_matrix
from study.plots import arm_styles, forest, learning_curves, mean_with_band, rewards, steps_of_a_mean
from study.runner import format_duration, seconds_left
from study.scores import reset_steps, reward_kept, scores
from study.tables import Tables, make_frame, read_tables
from trl_prorl.errors import InputError
from trl_prorl.eval.analysis.statistics import Estimate


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


def by_arms(found):
    """Rows of differences by arm and reference."""
    return {(one.arm, one.reference): one for one in found.itertuples()}


def test_scores(block, tables):
    found = scores(block, tables).set_index("arm")
    assert list(found.index) == ["plain_x", "A_x", "B_x", "B_beta_old3_x", "C_hard_x"]  # in the matrix's order
    plain = found.loc["plain_x"]
    # 0.5, 0.625, 0.75: mean 0.625, s = 0.125, t(2) = 4.302653
    assert plain["pass@1"].value == 0.625
    assert plain["pairs"] == 3
    assert plain["base pass@1"].value == 0.25
    gain = plain["pass@1 less base"]
    assert gain.value == 0.375
    assert gain.low < 0.375  # less 2 of 8 of each base
    assert plain["pass@1"].high - 0.625 == pytest.approx(4.302653 * 0.125 / 3**0.5, rel=0.05)
    assert plain["pass@8"].value == 1
    assert plain["greedy"].value == 1
    none = found.loc["B_beta_old3_x"]
    assert none["pass@8"].value == 0
    assert none["pass@8 less base"].value == -none["base pass@8"].value < -0.8
    assert none["greedy less base"].value == 0


def test_what_is_held_against_what(block):
    assert [block.kept_partner(arm) for arm in ("C_hard_x", "C_hard_K2_x", "A_x")] == ["A_x", None, None]
    found = {(arm, reference): hypothesis for arm, reference, hypothesis in compared(block)}
    assert {pair for pair, hypothesis in found.items() if hypothesis == H0} == {("A_x", "plain_x"), ("B_x", "plain_x")}
    assert {pair for pair, hypothesis in found.items() if hypothesis == H2} == {("C_hard_x", "A_x")}
    assert found["B_beta_old3_x", "plain_x"] == found["B_x", "A_x"] == found["C_hard_K2_x", "A_x"] == ELSE
    second = replace(block, registered={"outcomes": ["gold"], "differences": []})
    assert {hypothesis for *_, hypothesis in compared(second)} == {ELSE}


def test_differences(block, tables):
    rows = differences(block, tables)
    found = by_arms(rows)
    a = found["A_x", "plain_x"]
    assert a.contrast.estimate == pytest.approx((0.125,) * 3)
    assert a.verdict == "higher"
    assert a.pairs == 3
    assert found["B_x", "plain_x"].verdict == "equivalent"
    assert found["B_x", "plain_x"].p == 1
    # 0, 0, 0.125 above A: a mean of 0.0417 with an error of 0.0417
    hard = found["C_hard_x", "A_x"]
    assert hard.contrast.value == pytest.approx(0.125 / 3)
    assert hard.verdict == "not told apart"
    assert ("C_hard_K2_x", "A_x") not in found  # without runs
    # Holm, of the registered test and of that of the bases alone: the least of four, four times.
    exploratory = rows[rows["hypothesis"] == ELSE]
    assert len(exploratory) == 4
    assert set(exploratory["tests"]) == {4}
    assert hard.tests == 1
    for p_value, after in (("p", "adjusted"), ("p_alone", "adjusted_alone")):
        least = exploratory.sort_values(p_value).iloc[0]
        assert least[after] == pytest.approx(min(1, 4 * least[p_value]))
        assert (exploratory[after] >= exploratory[p_value]).all()
    assert hard.adjusted == hard.p == hard.contrast.p_value
    assert hard.p_alone == hard.alone.p_value


def test_one_base_is_no_test_for_holm(block, tables, add):
    """Its p-value is NaN, and the others are adjusted for their own number."""
    for seed in (2, 3):
        tables = tables.without([RunKey("reverse_digits", "B_x", seed, seed, 12)])
    found = by_arms(differences(block, tables))
    single = found["B_x", "A_x"]
    hard = found["C_hard_x", "plain_x"]
    assert single.verdict == "one base: no interval"
    assert single.adjusted != single.adjusted
    assert single.tests == 1
    assert hard.tests == 3


def test_differences_of_pass_at_8_are_exploratory(block, tables):
    # At least one of eight samples is right in every run but those of B_beta_old3; then in three quarters of A's.
    for share in (1.0, 0.75):
        right = {"A_x": share, "B_beta_old3_x": 0.0}
        found = differences(block, tables, k=8)
        assert set(found["hypothesis"]) == {ELSE}
        assert found["exploratory"].all()
        for one in found.itertuples():
            expected = right.get(one.arm, 1.0) - right.get(one.reference, 1.0)
            assert one.contrast.value == pytest.approx(expected, abs=1e-12)
        of_a = tables.prompts.index.get_level_values("arm") == "A_x"
        tables.prompts.loc[of_a & (tables.prompts["prompt"] < 10), "correct"] = 0  # of 40


@pytest.mark.parametrize(
    "value, error, said",
    [
        (0.015, 0.001, "higher, by no more than 0.02"),
        (-0.03, 0.001, "lower"),
        (0.03, 0.1, "not told apart"),
        (0.03, float("nan"), "one base: no interval"),
        (-0.004, 0.006, "not told apart"),  # 0.016 from the margin: t = 2.67, and t(0.95, 2) = 2.92
        (-0.004, 0.005, "equivalent"),  # t = 3.2
    ],
)
def test_a_difference_of_no_importance_is_not_h2(value, error, said):
    assert verdict(Contrast(value, error, 2), H2) == said
    assert verdict(Contrast(value, error, 2), H0) == said.partition(",")[0]


def test_shares(block, tables):
    found = {(one.arm, one.reference, one.of): one.ratio for one in shares(block, tables).itertuples()}
    assert found["B_x", "A_x", "score"].value == pytest.approx(0.625 / 0.75)
    assert found["B_x", "A_x", "gain over base"].value == pytest.approx(0.375 / 0.5)
    assert found["B_x", "C_hard_x", "score"].value == pytest.approx(15 / 19)
    assert found["B_beta_old3_x", "A_x", "score"].value == 0


def test_a_share_that_is_met_or_not():
    ratio = Contrast(0.85, 0.01, 4).estimate
    assert [is_share_kept(ratio, share) for share in (0.8, 0.85, 0.9)] == ["met", "undecided", "not met"]
    assert is_share_kept(Estimate(*[float("nan")] * 3), 0.8) == "undecided"


def test_means_over_families(study, tables, add):
    matrix = read_matrix(study(MATRIX.replace("[reverse_digits]", "[reverse_digits, sorting, sums]"), FAMILIES))
    (block,) = matrix.blocks
    assert over_families(block, tables).empty  # one family alone
    # C_hard is 0, 0, 1 of 8 above A in reversing, and 0, 0, −1 in sorting: by pairs nothing is left.
    for arm, counts in (("A", (4, 4, 4)), ("C_hard", (4, 4, 3))):
        for seed, count in enumerate(counts, start=1):
            add(tables, RunKey("sorting", f"{arm}_x", seed, seed, 12), prompts=40, correct=[count] * 40)
    # A family that is not complete yet does not take the others' pairs away.
    for arm in ("A_x", "C_hard_x"):
        add(tables, RunKey("sums", arm, 1, 1, 12), prompts=40, correct=[4] * 40)
    (one,) = over_families(block, tables).itertuples()
    assert (one.arm, one.reference, one.family, one.pairs) == ("C_hard_x", "A_x", "mean of 2", 3)
    assert (one.contrast.value, one.contrast.error, one.contrast.freedom) == (0, pytest.approx(0), 2)
    assert one.exploratory
    assert one.alone.error == pytest.approx(0)


def test_families_draw_their_questions_apart(study, add):
    """Questions alone vary, alike in both families: the mean's error is smaller by √2."""
    matrix = read_matrix(study(MATRIX.replace("[reverse_digits]", "[reverse_digits, sorting]"), FAMILIES))
    (block,) = matrix.blocks
    tables = Tables()
    for family in block.families:
        for arm, correct in (("plain", [0] * 40), ("A", [8] * 10 + [0] * 30)):
            for seed in (1, 2, 3):
                add(tables, RunKey(family, f"{arm}_x", seed, seed, 12), prompts=40, correct=correct)
    mean, one = (made(block, tables)["contrast"][0] for made in (over_families, differences))
    assert mean.error == pytest.approx(one.error / 2**0.5, rel=0.05)


def test_the_end_by_the_best(tables, add):
    key = RunKey("reverse_digits", "A_x", 1, 1, 12)

    def with_rewards(rewards):
        add(tables, key, prompts=40, steps=len(rewards), curve={"reward": rewards})
        return reward_kept(tables, key)

    # Windows of 10 steps have means of 0.8, 0.7 and 0.6; the last 10 steps have 0.6.
    assert with_rewards([1.0] * 8 + [0.0, 0.0, 0.0, 0.0]) == pytest.approx(0.6 / 0.8)
    assert with_rewards([0.5] * 12) == pytest.approx(1)
    assert with_rewards([0.0] * 12) == 0
    assert with_rewards([0.5] * 11 + [float("nan")]) == 0
    assert with_rewards([0.5] * 11) == 0  # stopped at step 11


def test_resets_and_the_steps_between_them(block, tables, add):
    for seed, steps in ((1, (3, 6, 11)), (2, (4, 8)), (3, (5,))):
        events = ["kl > 0.05" if step in steps else "" for step in range(1, 13)]
        key = RunKey("reverse_digits", "A_x", seed, seed, 12)
        add(tables, key, prompts=40, resets=len(steps), curve={"event": events})
    found = scores(block, tables).set_index("arm")
    assert found.loc["A_x", ["resets", "apart"]].tolist() == [[3, 2, 1], [3, 5, 4]]
    assert found.loc["plain_x", "apart"] == []


def test_the_study_s_resets_and_collapses_are_those_of_its_curves():
    """What the runner wrote from a run's own record, and what the tables alone give, run by run."""
    tables = read_tables(ROOT).earlier()
    assert len(tables.runs) >= 295
    for key, row in tables.runs.iterrows():
        key = RunKey(*key)
        assert len(reset_steps(tables, key)) == row["resets"]
        assert (reward_kept(tables, key) < 0.5) == bool(row["collapsed"])


def test_exploratory_and_registered(block, tables):
    found = by_arms(differences(block, tables))
    assert not found["A_x", "plain_x"].exploratory
    assert not found["C_hard_x", "A_x"].exploratory
    assert found["C_hard_x", "plain_x"].exploratory
    assert found["B_x", "A_x"].exploratory
    assert differences(replace(block, name="mild"), tables)["exploratory"].all()


@pytest.mark.slow
def test_pictures_are_the_same_bytes_from_the_same_tables(study, tables):
    root = study(MATRIX)
    matrix = read_matrix(root)
    first = {path.name: path.read_bytes() for path in write_pages(root, matrix, tables)}
    assert first == {path.name: path.read_bytes() for path in write_pages(root, matrix, tables)}
    assert set(first) == {"core_curves.png", "core_forest.png", "findings.md"}
    page = first["findings.md"].decode()
    assert "+0.125 [+0.125, +0.125]" in page
    assert "B_x" in page
    assert "Co-primary, by the [protocol]" in page
    assert "Exploratory" not in page
    (root / "study/recipes/matrix.yaml").write_text(MATRIX.replace("core:", "mild:"))
    write_pages(root, read_matrix(root), tables)
    assert "Exploratory, whatever the hypothesis" in (root / "study/pages/findings.md").read_text()
    with pytest.raises(InputError, match="none of these runs is finished"):
        write_pages(root, matrix, Tables())


def test_curves_and_forest(block, tables):
    look = arm_styles(block, tables)
    assert len({(style["color"], style["linestyle"]) for style in look.values()}) == len(look) == 5
    figure = learning_curves(block, tables)
    assert len(figure.axes) == 2
    assert len(figure.axes[0].lines) == 5
    assert len(figure.axes[1].lines) == 4 + 1
    found = differences(block, tables)
    picture = forest(block, tables, found)
    assert len(picture.axes) == 2
    assert len({panel.get_xlim() for panel in picture.axes}) == 1
    marks = [line for panel in picture.axes for line in panel.lines if line.get_marker() == "o"]
    drawn = sorted((float(mark.get_xdata()[0]), mark.get_markerfacecolor() != "white") for mark in marks)
    assert drawn == sorted((one.contrast.value, not one.exploratory) for one in found.itertuples())
    assert {filled for _, filled in drawn} == {True, False}
    assert all("B optimises a different objective" in one.get_supxlabel() for one in (figure, picture))
    assert "95 % t-intervals" in figure.get_supxlabel()
    assert len(figure.axes[0].collections) == 5  # bands of five arms
    assert learning_curves(block, Tables()) is None
    assert forest(block, tables, found[:0]) is None


def test_a_run_that_stopped_has_no_reward_afterwards(tables, add):
    key = RunKey("reverse_digits", "A_x", 1, 1, 12)
    add(tables, key, prompts=40, steps=5)
    of_pairs = pd.Series({(1, 1): key, (2, 2): float("nan")})
    curve = rewards(tables, of_pairs, 10)[1, 1]
    # Rewards are 0, 0.1, 0.2 …: the running mean at step 5 is 0.2.
    assert list(curve.index) == list(range(1, 13))
    assert curve[5] == pytest.approx(0.2)
    assert (curve[6:] == 0).all()
    assert rewards(tables, of_pairs, 2).loc[5].tolist() == pytest.approx([0.35])
    assert [steps_of_a_mean(steps) for steps in (24, 240, 480, 1000)] == [10, 10, 20, 42]


def test_a_band_is_the_t_interval():
    band = mean_with_band(pd.DataFrame([[0.0, 1.0], [1.0, 1.0]]))
    assert list(band["mean"]) == [0.5, 1.0]
    assert band["high"][0] - 0.5 == pytest.approx(12.7062 * 0.5, rel=1e-4)
    assert band["low"][1] == 1.0


def test_the_estimate_goes_by_family_and_steps():
    seconds = {("sums", "A", 1, 1, 100): 100.0, ("sums", "B", 1, 1, 100): 200.0, ("digits", "A", 1, 1, 100): 30.0}
    finished = make_frame().reindex(list(seconds)).assign(seconds=list(seconds.values()))
    assert seconds_left([RunKey("sums", "A", 2, 2, 100)], finished, jobs=1) == 150
    assert seconds_left([RunKey("sums", "A", 2, 2, 100)] * 4, finished, jobs=2) == 300
    assert seconds_left([RunKey("digits", "A", 2, 2, 1000)], finished, jobs=1) == 300  # by the step
    assert seconds_left([RunKey("other", "A", 2, 2, 10)], finished, jobs=1) == pytest.approx(11)
    unknown = seconds_left([RunKey("sums", "A", 2, 2, 100)], make_frame(), 1)
    assert format_duration(unknown).startswith("unknown before the first")
    said = [format_duration(seconds) for seconds in (10, 90, 3600, 7530)]
    assert said == ["under a minute", "2 min", "1 h 00 min", "2 h 06 min"]
    assert seconds_left([], make_frame(), 2) == 0
