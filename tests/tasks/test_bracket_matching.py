from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks import get_task
from tasks.bracket_matching import is_balanced


def reduces_to_nothing(brackets):
    while (shorter := brackets.replace("()", "").replace("[]", "").replace("{}", "")) != brackets:
        brackets = shorter
    return not brackets


@settings(deadline=None)
@given(st.text("()[]{}", max_size=8))
def test_is_balanced_agrees_with_cancelling_pairs(brackets):
    assert is_balanced(brackets) == reduces_to_nothing(brackets)


@pytest.fixture(scope="module")
def questions():
    rows = get_task("bracket_matching", level=3).rows("train", 3000)
    return [(row["prompt"][0]["content"].removeprefix("balanced, yes or no? "), row["answer"]) for row in rows]


def test_lengths_and_answers(questions):
    for brackets, answer in questions:
        assert answer == ("yes" if reduces_to_nothing(brackets) else "no")
        # Counting brackets does not help, nor does a look at the ends.
        assert brackets[0] in "([{" and brackets[-1] in ")]}"
        assert [brackets.count(b) for b in "([{"] == [brackets.count(b) for b in ")]}"]
    assert {len(brackets) for brackets, _ in questions} == {10, 12, 14, 16}


@pytest.mark.parametrize("cue", [len, lambda b: b[0], lambda b: b[-1], lambda b: b.count("(")])
def test_no_surface_cue_gives_the_answer_away(questions, cue):
    answers = defaultdict(Counter)
    for brackets, answer in questions:
        answers[cue(brackets)][answer] += 1
    for counts in answers.values():
        if counts.total() >= 200:
            assert 0.35 < counts["yes"] / counts.total() < 0.65
    assert sum(counts["yes"] for counts in answers.values()) / len(questions) == pytest.approx(0.5, abs=0.05)


def test_verify():
    task = get_task("bracket_matching")
    assert task.verify("yes\n", {"answer": "yes"})
    for completion in ("no", "yes no", "yesno", "y", ""):
        assert not task.verify(completion, {"answer": "yes"})
