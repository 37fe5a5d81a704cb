"""The study's one picture shows what the tables say."""

import pandas as pd
import pytest

from study.differences import differences
from study.matrix import RunKey, read_matrix
from study.pictures import overview
from study.tables import Tables


MATRIX = """
evaluation: {prompts: 40, samples: 8, drift_samples: 2}
blocks:
  core:
    families: [reverse_digits]
    pairs: [[1, 1], [2, 2], [3, 3]]
    steps: 12
    arms:
      plain: {}
      A: {beta: 1.0, ref_reset_every: 4}
      C_hard: {beta: 1.0, ref_reset_every: 4, optimizer_reset: hard}
  fast:
    families: [reverse_digits]
    pairs: [[1, 1], [2, 2], [3, 3]]
    steps: 12
    keys: {learning_rate: 0.5}
    suffix: _fast
    arms:
      plain:
      A:
  long:
    families: [reverse_digits]
    pairs: [[1, 1]]
    steps: 24
    suffix: _long
    keys: {learning_rate: 0.9}
    arms:
      plain:
  longer:
    families: [reverse_digits]
    pairs: [[1, 1], [2, 2]]
    steps: 100
    arms:
      plain:
      A:
"""
COUNTS = {"plain": 4, "A": 5, "C_hard": 2, "plain_fast": 0, "A_fast": 1}


@pytest.fixture
def matrix(study):
    return read_matrix(study(MATRIX))


@pytest.fixture
def tables(add):
    made = Tables()
    for arm, count in COUNTS.items():
        for seed in (1, 2, 3):
            add(made, RunKey("reverse_digits", arm, seed, seed, 12), prompts=40, correct=[count + seed - 1] * 40)
    add(made, RunKey("reverse_digits", "plain_long", 1, 1, 24), prompts=40, correct=[8] * 40)
    return made


def held(matrix, tables):
    return [(block, differences(block, tables)) for block in matrix.blocks]


def points(axes):
    marks = [line for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata())]
    return [(line.get_xdata()[0], line.get_markerfacecolor() != "white") for line in marks]


def test_the_picture(matrix, tables, add):
    for seed in (1, 2):
        for arm, count in (("plain", 4), ("A", 5)):
            add(tables, RunKey("reverse_digits", arm, seed, seed, 100), prompts=40, correct=[count] * 40)
    seconds = pd.DataFrame({"TRL β>0": 6.0, "A packed": 2.0, "B packed": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]})
    performance, length, stability, cost = overview(held(matrix, tables), tables, seconds).axes
    assert [label.get_text() for label in performance.get_yticklabels()] == ["A", "C_hard"]
    # Less plain, of 8: 5 - 4 and 2 - 4; the last comparison has no hypothesis, the other blocks are not registered.
    assert points(performance)[:2] == [(pytest.approx(0.125), True), (pytest.approx(-0.25), False)]
    assert points(length)[0] == points(stability)[0] == (pytest.approx(0.125), False)
    assert "100 steps" in length.get_xlabel() and "rate 0.5" in stability.get_xlabel()  # `long` has nothing to compare
    assert [text.get_text() for text in length.get_legend().get_texts()] == ["reverse_digits, 2 pairs"]
    assert [label.get_text() for label in cost.get_yticklabels()] == ["B", "A", "TRL β>0"]
    assert [text.get_text().strip() for text in cost.texts] == ["62%", "100%", "300%"]
    assert [bar.get_width() for bar in cost.patches] == pytest.approx([0.625, 1.0, 3.0])


def test_panels_without_data_say_so(matrix, add):
    tables = Tables()
    assert overview(held(matrix, tables), tables, pd.DataFrame()) is overview([], tables, pd.DataFrame()) is None
    for arm in ("plain", "A"):
        add(tables, RunKey("reverse_digits", arm, 1, 1, 12), prompts=40, correct=[4] * 40)
    _, *empty = overview(held(matrix, tables), tables, pd.DataFrame()).axes
    assert [axes.texts[0].get_text() for axes in empty] == ["no such runs yet", "no such runs yet", "not measured"]
