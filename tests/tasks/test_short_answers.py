"""Tasks whose question is a few digits or brackets, and whose answer is a word, a number or a sum."""

from collections import Counter, defaultdict

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


@pytest.mark.parametrize("level", [1, 3, 8])
@pytest.mark.parametrize("name", QUESTIONS)
def test_lengths_and_answers(name, level):
    begin, alphabet, answer, (a, b, c) = QUESTIONS[name]
    rows = get_task(name, level=level).rows("train", 500)
    questions = [row["prompt"][0]["content"] for row in rows]
    assert all(question.startswith(begin) for question in questions)
    digits = [question.removeprefix(begin) for question in questions]
    answers = list(rows["answer"])
    assert answers == [answer(each) for each in digits]
    assert set("".join(digits)) == set(alphabet)
    assert {len(each) for each in digits} == set(range(a, b * level + c))
    assert len({each[0] for each in digits}) == len(alphabet)  # leading zeros occur
    shares = [answers.count(each) / 500 for each in set(answers)]
    # Four standard deviations of 500 fair draws are 0.09.
    assert name != "parity" or max(shares) < 0.59
    assert name != "digit_checksum" or len(shares) == 10


# Every task's right answer, and then what is wrong.
RIGHT = {"reverse_digits": "54321", "digit_checksum": "5", "parity": "odd", "bracket_matching": "yes"}
WRONG = [
    ("reverse_digits", "12345"),
    ("reverse_digits", "54321 54321"),
    ("reverse_digits", "054321"),
    ("reverse_digits", "5 4 3 2 1"),
    ("reverse_digits", "54321."),
    ("reverse_digits", ""),
    ("digit_checksum", "15"),
    ("digit_checksum", "05"),
    ("digit_checksum", "5.0"),
    ("digit_checksum", "٥"),
    ("digit_checksum", "0123456789"),
    ("digit_checksum", ""),
    ("parity", "even"),
    ("parity", "Odd or even"),
    ("parity", "odd even"),
    ("parity", "o"),
    ("parity", ""),
    ("bracket_matching", "no"),
    ("bracket_matching", "yes no"),
    ("bracket_matching", "yesno"),
    ("bracket_matching", "y"),
    ("bracket_matching", ""),
]


@pytest.mark.parametrize(
    "name, completion", [*RIGHT.items(), *((name, f" {RIGHT[name]}\n") for name in RIGHT), *WRONG]
)
def test_verify(name, completion):
    task = get_task(name)
    row = {"answer": RIGHT[name]}
    correct = completion.strip() == RIGHT[name]
    assert task.verify(completion, row) is correct
    assert task.reward(completion, row) == float(correct)


@pytest.mark.parametrize(
    "completion, paid",
    [
        ("54321", 1),
        ("50001", 1),
        (" 59991\n", 1),
        ("5432", 0),
        ("543211", 0),
        ("44321", 0),
        ("54322", 0),
        ("5x321", 0),
    ],
)
def test_ends_pays_the_first_and_the_last_digit(completion, paid):
    task = get_task("reverse_digits", reward="ends")
    row = {"answer": "54321"}
    assert task.reward(completion, row) == paid
    assert task.verify(completion, row) is (completion == "54321")


@pytest.mark.parametrize(
    "first, last, paid",
    [
        (0, 0, ["54321", "50001", "54001", "50021", "54021", "00000"]),
        (1, 0, ["54321", "50001", "54001", "50021", "54021"]),
        (1, 1, ["54321", "50001", "54001", "50021", "54021"]),
        (2, 1, ["54321", "54001", "54021"]),
        (2, 2, ["54321", "54021"]),
        (3, 2, ["54321"]),
        (9, 0, ["54321"]),
        (0, 9, ["54321"]),
    ],
)
def test_ends_pays_as_many_digits_as_it_is_told(first, last, paid):
    task = get_task("reverse_digits", reward="ends", first=first, last=last)
    row = {"answer": "54321"}
    texts = ["54321", "50001", "54001", "50021", "54021", "00000", "5432", "543211", "5x321", ""]
    assert [text for text in texts if task.reward(text, row)] == paid
    assert [text for text in texts if task.verify(text, row)] == ["54321"]


def test_a_string_no_longer_than_its_ends_is_right_as_a_whole():
    task = get_task("reverse_digits", reward="ends", first=2, last=2)
    assert [task.reward(text, {"answer": "4321"}) for text in ("4321", "4021", "4301", "0321")] == [1, 0, 0, 0]
    assert [task.reward(text, {"answer": "321"}) for text in ("321", "301", "021", "320")] == [1, 0, 0, 0]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"reward": "ends", "first": -1}, "first=-1 must be at least 0"),
        ({"reward": "ends", "last": 1.5}, "last=1.5"),
        ({"first": 2}, "first=2 needs reward='ends'"),
    ],
)
def test_ends_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        get_task("reverse_digits", **options)


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


@pytest.mark.parametrize("cue", [len, lambda b: b[0], lambda b: b[-1], lambda b: b.count("(")])
def test_no_surface_cue_gives_the_answer_away(questions, cue):
    answers = defaultdict(Counter)
    for brackets, answer in questions:
        answers[cue(brackets)][answer] += 1
    for counts in answers.values():
        if counts.total() >= 200:
            assert 0.35 < counts["yes"] / counts.total() < 0.65
    assert sum(counts["yes"] for counts in answers.values()) / len(questions) == pytest.approx(0.5, abs=0.05)


ROW = {"prompt": [{"role": "user", "content": "add 17 48 5"}], "working": "17+48=65 65+5=70", "answer": "70"}


@pytest.mark.parametrize("level", [1, 3, 8])
def test_numbers_and_answers(level):
    counts = set()
    digits = set()
    for row in get_task("sums", level=level).rows("train", 300):
        verb, *terms = row["prompt"][0]["content"].split(" ")
        assert verb == "add"
        assert all(term.isdecimal() and not term.startswith("0") for term in terms)
        assert row["answer"] == str(sum(int(term) for term in terms))
        counts.add(len(terms))
        digits.update(len(term) for term in terms)
    assert counts == set(range(2, level + 2))
    assert digits == {1, 2}


def test_the_working_by_hand():
    assert working([17, 48, 5]) == "17+48=65 65+5=70"
    assert working([99, 99, 2, 10]) == "99+99=198 198+2=200 200+10=210"
    assert get_task("sums").gold(ROW) == "17+48=65 65+5=70 #### 70"


def test_answers_of_level_3_are_short():
    task = get_task("sums")
    lengths = [len(task.gold(row)) for row in task.rows("train", 500)]
    assert 10 <= min(lengths) < 14
    assert 32 < max(lengths) <= 41


@pytest.mark.parametrize("reward", ["exact", "steps"])
@pytest.mark.parametrize(
    "completion, correct",
    [
        ("17+48=65 65+5=70 #### 70", True),
        ("17+48=65\n65+5=70\n#### 70.0", True),
        ("#### 70", True),
        ("17+48=55 55+5=60 #### 70", True),
        ("17+48=65 65+5=70", False),
        ("17+48=65 65+5=70 70", False),
        ("17+48=65 65+5=70 #### 65", False),
        ("17+48=65 65+5=70 #### 7", False),
        ("17+48=65 65+5=70 #### 70 #### 65", False),
        ("17+48=65 65+5=70 #### 65+5", False),
        ("17+48=65 65+5=70 ### 70", False),
        ("####", False),
        ("", False),
    ],
)
def test_the_marked_sum_decides(reward, completion, correct):
    """The working is a way, and not asked for."""
    task = get_task("sums", reward=reward)
    assert task.verify(completion, ROW) is correct
    assert (task.reward(completion, ROW) == 1.0) is correct
    if reward == "exact":
        assert task.reward(completion, ROW) == float(correct)


@pytest.mark.parametrize(
    "completion, points",
    [
        # Of four points, one for each of the two additions, one for the mark.
        ("17+48=65 65+5=70 #### 65", 3),
        ("17+48=65 65+5=71 #### 71", 2),
        ("17+48=55 55+5=60 #### 60", 1),
        ("17+48=65 65+5=70", 2),
        ("17+48=65", 1),
        ("65+5=70 17+48=65", 0),  # out of place
        ("48+17=65 65+5=70", 1),
        ("#### 71 17+48=65 65+5=70", 1),  # after the mark
        ("17+48=65 #### 65 #### 70", 1),  # two marks that disagree
        ("17+48=65 17+48=65 17+48=65 #### 1", 2),
        ("17", 0),
        ("", 0),
    ],
)
def test_steps_by_hand(completion, points):
    assert get_task("sums", reward="steps").reward(completion, ROW) == points / 4
