"""The study's one picture shows what the tables say."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest

from study.cost import relative
from study.differences import differences
from study.matrix import RunKey, read_matrix
from study.pictures import longest, over_rates, overview
from study.scores import scores
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
CORRECT = {"plain": (4, 5, 6), "A": (5, 6, 7), "C_hard": (2, 3, 4), "plain_fast": (0, 0, 0), "A_fast": (1, 2, 3)}


@pytest.fixture
def matrix(study):
    return read_matrix(study(MATRIX))


@pytest.fixture(scope="module")
def made(add):
    tables = Tables()
    for arm, counts in CORRECT.items():
        for seed, count in enumerate(counts, start=1):
            key = RunKey("reverse_digits", arm, seed, seed, 12)
            add(tables, key, prompts=40, correct=[count] * 40)
    add(tables, RunKey("reverse_digits", "plain_long", 1, 1, 24), prompts=40, correct=[8] * 40)
    return tables


@pytest.fixture
def tables(made):
    return deepcopy(made)


def both(matrix, tables):
    return [[one for block in matrix.blocks for one in what(block, tables)] for what in (scores, differences)]


def test_learning_rates_are_compared_at_equal_steps(matrix, tables):
    found = over_rates(matrix, matrix.blocks[0], both(matrix, tables)[0])
    slow = float(matrix.blocks[0].recipe("plain")["learning_rate"])
    values = {arm: {rate: one.pass1.value for rate, one in rates.items()} for arm, rates in found.items()}
    # C_hard has no run at the other rate; `long` has other steps.
    assert values == {"plain": {slow: 0.625, 0.5: 0.0}, "A": {slow: 0.75, 0.5: 0.25}}


def test_the_picture(matrix, tables):
    seconds = {"A packed": [2.0] * 6, "B packed": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "TRL β>0": [6.0] * 6}
    figure = overview(matrix, tables, *both(matrix, tables), seconds, "core")
    performance, _, stability, cost = figure.axes
    assert [label.get_text() for label in performance.get_yticklabels()] == ["A", "C_hard"]
    points = [
        tuple(line.get_xdata()) for line in performance.lines if line.get_marker() == "o" and len(line.get_xdata())
    ]
    assert points == [(pytest.approx(0.125),), (pytest.approx(-0.25),)]  # less plain: (5 - 4) / 8 and (2 - 4) / 8
    labels = {line.get_label(): line for line in stability.lines if not line.get_label().startswith("_")}
    assert set(labels) == {"plain", "A", "base"} and set(labels["base"].get_ydata()) == {0.25}
    # The block `fast` is not a registered one: hollow.
    faces = {
        line.get_xdata()[0] > 0.1: line.get_markerfacecolor() for line in stability.lines if line.get_marker() == "o"
    }
    assert faces[True] == "white" and faces[False] != "white"
    assert [label.get_text() for label in cost.get_yticklabels()] == ["B", "A", "TRL β>0"]
    assert [text.get_text().strip() for text in cost.texts] == ["62%", "100%", "300%"]
    assert [bar.get_width() for bar in cost.patches] == pytest.approx([0.625, 1.0, 3.0])
    assert relative(seconds, "B packed", "A packed") == pytest.approx((0.625, 0.5, 0.75))


def test_panels_without_data_say_so(matrix, add):
    tables = Tables()
    assert overview(matrix, tables, *both(matrix, tables), {}, "core") is None
    for arm in ("plain", "A"):
        add(tables, RunKey("reverse_digits", arm, 1, 1, 12), prompts=40, correct=[4] * 40)
    _, *empty = overview(matrix, tables, *both(matrix, tables), {}, "core").axes
    says = ["no longer run yet", "no run at another rate yet", "not measured"]
    assert [axes.texts[0].get_text() for axes in empty] == says


def test_longer_runs_are_shown_less_plain(matrix, tables, add):
    assert longest(matrix, tables, matrix.blocks[0]) == {}  # `long` has nothing to compare
    for seed in (1, 2):
        for arm, slope, count in (("plain", 0.1, 4), ("A", 0.1 + 0.01 * seed, 5)):
            key = RunKey("reverse_digits", arm, seed, seed, 100)
            add(tables, key, prompts=40, correct=[count] * 40, curve={"reward": slope * np.arange(100)})
    assert longest(matrix, tables, matrix.blocks[0]) == {"reverse_digits": matrix.blocks[3]}
    length = overview(matrix, tables, *both(matrix, tables), {}, "core").axes[1]
    (curve,) = (line for line in length.lines if line.get_label() == "A")
    # Slopes differ by 0.01 and 0.02; a running mean of ten steps is the value 4.5 steps before.
    assert list(curve.get_xdata()) == list(range(10, 101)) and curve.get_ydata()[-1] == pytest.approx(0.015 * 94.5)
    (point,) = (line for line in length.lines if line.get_marker() == "o")
    assert list(point.get_ydata()) == [pytest.approx(0.125)] and point.get_markerfacecolor() == "white"
    assert point.get_xdata()[0] > 100 and max(length.get_xticks()) <= 100
    assert [text.get_text() for text in length.texts] == ["reverse_digits, 2 pairs"]


TWO_FAMILIES = """
evaluation: {prompts: 40, samples: 8, drift_samples: 2}
blocks:
  core:
    families: [reverse_digits, sorting, sums]
    pairs: [[1, 1]]
    steps: 12
    arms: {plain: {}, A: {beta: 1.0, ref_reset_every: 4}}
  middle: {families: [sorting], pairs: [[1, 1]], steps: 24, arms: {plain: , A: }}
  long: {families: [reverse_digits, sums], pairs: [[1, 1]], steps: 100, arms: {plain: , A: }}
  more: {families: [reverse_digits], pairs: [[1, 1], [2, 2]], steps: 100, arms: {plain: , A: }}
"""


def test_each_family_of_the_longest_runs_has_its_panel(study, add):
    matrix, tables = read_matrix(study(TWO_FAMILIES, ("reverse_digits", "sorting", "sums"))), Tables()
    counts = {("reverse_digits", 1): 5, ("reverse_digits", 2): 6, ("sums", 1): 3, ("sorting", 1): 7}
    for (family, seed), count in counts.items():
        for steps in (12, 24 if family == "sorting" else 100):
            add(tables, RunKey(family, "plain", seed, seed, steps), prompts=40, correct=[4] * 40)
            add(tables, RunKey(family, "A", seed, seed, steps), prompts=40, correct=[count] * 40)
    core, _, long, more = matrix.blocks
    # Sorting has runs of 24 steps, and others have longer ones; `more` has more pairs than `long`.
    assert longest(matrix, tables, core) == {"reverse_digits": more, "sums": long}
    _, first, second, stability, _ = overview(matrix, tables, *both(matrix, tables), {}, "core").axes
    assert [text.get_text() for text in first.texts] == ["reverse_digits, 2 pairs"]
    assert [text.get_text() for text in second.texts] == ["sums, 1 pair"]
    points = [[line.get_ydata()[0] for line in axes.lines if line.get_marker() == "o"] for axes in (first, second)]
    assert points == [[pytest.approx(0.1875)], [pytest.approx(-0.125)]]  # less plain: 1.5 and -1 of 8
    assert first.get_xlim() == second.get_xlim() and stability.texts[0].get_text() == "no run at another rate yet"


def test_a_selection_without_any_longer_run(matrix, tables):
    for selected in (matrix.selected(["core"]), matrix.selected([], [], ["A"])):
        assert longest(selected, tables, selected.blocks[0]) == {}
    none = matrix.selected([], ["reverse_digits"])
    empty = replace(none.blocks[3], runs=())
    assert longest(replace(none, blocks=(*none.blocks[:3], empty)), tables, none.blocks[0]) == {}
