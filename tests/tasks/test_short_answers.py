"""Tasks whose question is a few digits or brackets, and whose answer is a word, a number or a sum."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_prorl.tasks import get_task
from trl_prorl.tasks.bracket_matching import is_balanced
from trl_prorl.tasks.sums import working


# How a question begins, its digits, the answer to them, and how many there are at level n: from a to b n + c - 1.
QUESTIONS = {
    "reverse_digits": ("reverse ", "0123456789", lambda digits: digits[::-1], (3, 1, 6)),
    "digit_checksum": ("digit sum mod 10: ", "0123456789", lambda digits: str(sum(map(int, digits)) % 10), (3, 1, 6)),
    "parity": ("ones even or odd? ", "01", lambda bits: ["even", "odd"][sum(map(int, bits)) % 2], (4, 4, 9)),
}


@pytest.mark.parametrize("level", [1, 8])
@pytest.mark.parametrize("name", QUESTIONS)
def test_lengths_and_answers(name, level):
    begin, alphabet, answer, (a, b, c) = QUESTIONS[name]
    rows = get_task(name, level=level).rows("train", 500)
    questions = [row["prompt"][0]["content"] for row in rows]
    assert all(question.startswith(begin) for question in questions)
    digits = [question.removeprefix(begin) for question in questions]
    answers = list(rows["answer"])
    assert answers == [answer(each) for each in digits]
    assert {len(each) for each in digits} == set(range(a, b * level + c))
    assert {each[0] for each in digits} == set(alphabet)  # leading zeros occur
    # Four standard deviations of 500 fair draws are 0.09.
    assert name != "parity" or 0.41 < answers.count("odd") / 500 < 0.59


# Every task's right answer, and then what is wrong.
RIGHT = {"reverse_digits": "54321", "digit_checksum": "5", "parity": "odd", "bracket_matching": "yes"}
WRONG = {
    "reverse_digits": ["12345", "54321 54321", "054321", "5 4 3 2 1", "54321.", ""],
    "digit_checksum": ["15", "05", "5.0", "٥", "0123456789", ""],
    "parity": ["even", "Odd or even", "odd even", "o", ""],
    "bracket_matching": ["no", "yes no", "yesno", "y", ""],
}


@pytest.mark.parametrize("name", RIGHT)
def test_verify(name):
    task = get_task(name)
    row = {"answer": RIGHT[name]}
    assert task.verify(RIGHT[name], row)
    assert task.verify(f" {RIGHT[name]}\n", row)
    assert [text for text in WRONG[name] if task.verify(text, row)] == []


@pytest.mark.parametrize(
    "keys, rewarded",
    [
        ({}, ["54321", "50001", "54001", "54021"]),  # the first and the last digit
        ({"first": 0, "last": 0}, ["54321", "50001", "54001", "54021", "00000"]),
        ({"first": 2, "last": 1}, ["54321", "54001", "54021"]),
        ({"first": 2, "last": 2}, ["54321", "54021"]),
        ({"first": 0, "last": 9}, ["54321"]),  # more than it has
        ({"first": 3, "last": 2}, ["54321"]),
        ({"first": 3, "last": 3}, ["54321"]),
    ],
)
def test_ends_checks_as_many_digits_as_it_is_told(keys, rewarded):
    task = get_task("reverse_digits", reward="ends", **keys)
    row = {"answer": "54321"}
    texts = ["54321", "50001", "54001", "54021", "00000", "5432", "543211", "5x321", ""]
    assert [text for text in texts if task.reward(text, row)] == rewarded
    assert [text for text in texts if task.verify(text, row)] == ["54321"]


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


def test_lengths_and_answers_of_brackets(questions):
    for brackets, answer in questions:
        assert answer == ("yes" if reduces_to_nothing(brackets) else "no")
        # Counting brackets does not help, nor does a look at the ends.
        assert brackets[0] in "([{"
        assert brackets[-1] in ")]}"
        assert [brackets.count(b) for b in "([{"] == [brackets.count(b) for b in ")]}"]
    assert {len(brackets) for brackets, _ in questions} == {10, 12, 14, 16}


ROW = {"prompt": [{"role": "user", "content": "add 17 48 5"}], "working": "17+48=65 65+5=70", "answer": "70"}


@pytest.mark.parametrize("level", [1, 8])
def test_numbers_and_answers(level):
    counts = set()
    for row in get_task("sums", level=level).rows("train", 300):
        terms = row["prompt"][0]["content"].removeprefix("add ").split(" ")
        assert row["answer"] == str(sum(int(term) for term in terms))
        counts.add(len(terms))
    assert counts == set(range(2, level + 2))


def test_the_working_by_hand():
    assert working([17, 48, 5]) == "17+48=65 65+5=70"
    assert working([99, 99, 2, 10]) == "99+99=198 198+2=200 200+10=210"
    assert get_task("sums").gold(ROW) == "17+48=65 65+5=70 #### 70"
