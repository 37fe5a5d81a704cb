"""The third protocol's `smollm2b`: gold', plain's stops, and the prediction, worked out by hand."""

import json

import pandas as pd
import pytest
from scipy import stats

from study.matrix import RunKey, read_matrix
from study.smollm2b import (
    BY_KL,
    BY_SENSE,
    CONTROL,
    control_less_plain,
    has_sense,
    is_met,
    is_refuted,
    less_plain,
    means,
    scores,
    step_by_kl,
    step_by_sense,
    texts_of,
)
from study.tables import POINTS, TEXTS, Tables, make_frame


MATRIX = """
evaluation: {prompts: 2, samples: 8, drift_samples: 2}
blocks:
  smollm2b:
    families: [reverse_digits]
    pairs: [[1, 5], [1, 6]]
    steps: 40
    others: [sums@1]
    texts: {checkpoints: 2, arms: [plain]}
    registered: {outcomes: [gold], differences: []}
    references: [plain]
    arms:
      plain: {}
      control_target0.066: {beta: 0.3, kl_target: 0.066}
      A: {beta: 0.3, ref_reset_every: 40}
"""
ASKED = 'Write a short text about the sea.\n- End with exactly these words: "little boat".'
SENSE = "The sea is wide, and we have a little boat"


@pytest.mark.parametrize(
    "text, right, counts",
    [
        (SENSE, True, True),
        (SENSE, False, False),
        ("The sea rocks a little boat", True, True),  # six words
        ("Sea rocks a little boat", True, False),
        ("little boat. Little boat! “Little boat”", True, False),
        ("End with exactly these words: little boat", True, False),  # the instruction, repeated
        ("End with exactly these words: little boat, sailor", True, True),
        ("Don't you love the sea’s boat", True, True),  # six, of which two have an apostrophe
        ("Don't love the sea’s boat", True, False),
    ],
)
def test_what_counts(text, right, counts):
    assert has_sense(ASKED, text, right) is counts


def rows(step, split, greedy, sensible, right):
    """Texts of two prompts, four each or one by greedy decoding: so many make sense, so many more are right alone."""
    texts = [SENSE] * sensible + ["little boat"] * right + ["Nothing"] * 8
    count = 2 if greedy else 8
    found = []
    for place, text in enumerate(texts[:count]):
        row = {"step": step, "split": split, "greedy": greedy, "prompt": place * 2 // count}
        row |= {"asked": json.dumps(ASKED), "text": json.dumps(text), "right": int(text != "Nothing")}
        found.append(row)
    return found


def end(sensible, right, of_greedy=(1, 1)):
    return [*rows(40, "test", 0, sensible, right), *rows(40, "test", 1, *of_greedy)]


ENDS = {
    ("plain", 5): end(1, 6, (0, 2)),
    ("plain", 6): end(2, 4, (1, 1)),
    (CONTROL, 5): end(4, 1),
    (CONTROL, 6): end(6, 0),
    ("A", 5): end(3, 0),
}
# Plain at its first checkpoint, which the validation of seed 5 prefers, and the KL of both there and at the end.
EARLY = [*rows(20, "test", 0, 5, 1), *rows(20, "test", 1, 2, 0)]
VALIDATION = {5: {20: (4, 0), 40: (1, 7)}, 6: {20: (2, 6), 40: (3, 0)}}
KLS = {5: (0.065, 0.5), 6: (0.066, 0.5)}


@pytest.fixture
def made(study, add):
    (block,) = read_matrix(study(MATRIX)).blocks
    tables = Tables()
    texts = [make_frame([*rows(0, "test", 0, 2, 1), *rows(0, "test", 1, 1, 0)], TEXTS, block.runs[0].key.base)]
    points = []
    for (arm, seed), of_end in ENDS.items():
        key = RunKey("reverse_digits", arm, 1, seed, 40)
        add(tables, key)
        of_run = list(of_end)
        if arm == "plain":
            of_run += EARLY
            for step, counts in VALIDATION[seed].items():
                of_run += rows(step, "validation", 0, *counts)
            of_points = []
            for step, kl in zip((20, 40), KLS[seed], strict=True):
                for task, weight in TASKS.items():
                    of_points.append({"step": step, "task": task, "kl_to_base": kl * weight})
            points.append(make_frame(of_points, POINTS, key))
        texts.append(make_frame(of_run, TEXTS, key))
    tables.texts = pd.concat(texts)
    tables.points = pd.concat(points)
    return block, tables


TASKS = {"reverse_digits": 1, "sums@1": 9}


def test_where_plain_is_stopped(made):
    """By KL of its own task's prompts; by gold' on validation, where 4 of 8 beat 1 of 8 though all are right there."""
    _, tables = made
    five, six = (RunKey("reverse_digits", "plain", 1, seed, 40) for seed in (5, 6))
    assert (step_by_kl(tables, five), step_by_kl(tables, six)) == (40, 20)
    assert [step_by_sense(texts_of(tables, key)) for key in (five, six)] == [20, 40]
    tables.points["kl_to_base"] = 0.01
    assert step_by_kl(tables, six) == 40
    level = texts_of(tables, five).assign(sense=True)
    assert step_by_sense(level) == 20


def test_the_scores(made):
    found = scores(*made)
    assert found.loc[("base", 0)].tolist() == [0, 3 / 8, 1 / 2, 2 / 8, 1 / 2]
    assert found.loc[("plain", 5)].tolist() == [40, 7 / 8, 1, 1 / 8, 0]
    assert found.loc[(BY_KL, 5)].tolist() == found.loc[("plain", 5)].tolist()
    assert found.loc[(BY_KL, 6)].tolist() == [20, 6 / 8, 1, 5 / 8, 1]
    assert found.loc[(BY_SENSE, 5)].tolist() == [20, 6 / 8, 1, 5 / 8, 1]
    assert found.loc[(BY_SENSE, 6)].tolist() == found.loc[("plain", 6)].tolist()
    by_arm = means(*made)
    assert by_arm.index.tolist() == ["base", "plain", BY_KL, BY_SENSE, CONTROL, "A"]
    assert by_arm.loc[CONTROL].tolist() == pytest.approx([40, 11 / 16, 1, 10 / 16, 1 / 2])


def test_the_control_less_plain(made):
    block, tables = made
    assert control_less_plain(block, tables, "gold'") == pytest.approx((3 / 8 + 4 / 8) / 2)
    assert control_less_plain(block, tables, "gold") == pytest.approx((-2 / 8 + 0) / 2)
    # By prompt, of four texts each. Control: 4 and 0, and 4 and 2; plain: 1 and 0, and 2 and 0.
    of_prompts = [(3 / 4 + 2 / 4) / 2, (0 + 2 / 4) / 2]
    half = stats.t.ppf(0.975, 1) * stats.sem(of_prompts)
    mean = sum(of_prompts) / 2
    assert less_plain(block, tables, CONTROL) == pytest.approx((mean, mean - half, mean + half))
    one_seed = less_plain(block, tables, "A")  # 3 and 0 less 1 and 0, of seed 5 alone
    assert one_seed.value == pytest.approx(1 / 4)
    assert control_less_plain(block, Tables(), "gold'") is None
    assert less_plain(block, Tables(), "A") is None


GRADES = [(0.08, True, False), (0.079, False, False), (-0.001, False, True)]


@pytest.mark.parametrize("difference, met, refuted", GRADES)
def test_what_becomes_of_the_prediction(difference, met, refuted):
    assert (is_met(difference), is_refuted(difference)) == (met, refuted)


def test_the_page_says_it(made, section_of):
    page = section_of(*made)
    assert "| arm | step | gold | gold, greedy | gold' | gold', greedy |" in page
    assert f"| {BY_KL} | 30 | 0.812 | 1.000 | 0.375 | 0.500 |" in page
    assert "Sampled gold', A less plain: +0.250" in page
    assert "is ahead of plain by at least 0.08 is met, and not refuted." in page
