"""
Pairs of a reference answer and an answer, judged by hand before the task `math` was written to fit them.

`math_pairs_first.tsv` has the faults that were found in an earlier version, with many ordinary pairs; `math_pairs.tsv`
has other kinds, each with its class; its last rows are near misses that a later version was tried with. `right` is
what a careful teacher accepts: the same value in another notation, in another order where order has no meaning, with a
unit that only the answer names. `wrong` is everything else: a rounded value and a calculation that was left to do are
wrong too. On `either` careful readers differ. What is `unread` is right, too, but of a class that the task does not
read: congruences, unsolved inequalities, operations on sets, ratios, binomials, factorials, absolute values.
`math_forms.tsv` has pairs of every form that the code reads, written beside it; docs/tasks.md does not count them.
docs/tasks.md has what math-verify accepts and refuses, by
`verify(parse(f"${reference}$"), parse(text))`.
"""

from pathlib import Path

import pytest


FILES = ("math_pairs_first.tsv", "math_pairs.tsv", "math_forms.tsv")


def pairs(name, judgment):
    """Return the pairs (reference, answer) of a file that have this judgment."""
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines[1:]]
    return [(reference, answer) for reference, answer, judged, *_ in rows if judged == judgment]


@pytest.fixture(scope="module")
def is_right(math_task):
    def is_right(reference, answer):
        return math_task.verify(f"So the answer is $\\boxed{{{answer}}}$.", {"answer": reference})

    return is_right


@pytest.mark.parametrize("name", FILES)
def test_no_wrong_answer_is_accepted(is_right, name):
    assert [pair for pair in pairs(name, "wrong") if is_right(*pair)] == []


@pytest.mark.parametrize("name", FILES)
def test_right_answers_are_accepted(is_right, name):
    assert [pair for pair in pairs(name, "right") if not is_right(*pair)] == []
