"""Tasks whose question is a few digits and whose answer is a word or a number."""

import pytest
from tables import pairs

from tasks import get_task


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
    assert set("".join(digits)) == set(alphabet) and {len(each) for each in digits} == set(range(a, b * level + c))
    assert len({each[0] for each in digits}) == len(alphabet)  # leading zeros occur
    shares = [answers.count(each) / 500 for each in set(answers)]
    # Four standard deviations of 500 fair draws are 0.09.
    assert name != "parity" or max(shares) < 0.59
    assert name != "digit_checksum" or len(shares) == 10


# Every task's right answer, and then what is wrong.
RIGHT = {"reverse_digits": "54321", "digit_checksum": "5", "parity": "odd"}
WRONG = pairs(
    """
    reverse_digits ≟ 12345 ¦ 54321 54321 ¦ 054321 ¦ 5 4 3 2 1 ¦ 54321. ¦ ∅
    digit_checksum ≟ 15 ¦ 05 ¦ 5.0 ¦ ٥ ¦ 0123456789 ¦ ∅ ¦ parity ≟ even ¦ Odd or even ¦ odd even ¦ o ¦ ∅
    """
)


@pytest.mark.parametrize(
    "name, completion", [*RIGHT.items(), *((name, f" {RIGHT[name]}\n") for name in RIGHT), *WRONG]
)
def test_verify(name, completion):
    task, row, right = get_task(name), {"answer": RIGHT[name]}, completion.strip() == RIGHT[name]
    assert task.verify(completion, row) is right and task.reward(completion, row) == float(right)


@pytest.mark.parametrize(
    "paid, completion", pairs("1 ≟ 54321 ¦ 50001 ¦ ␣59991⏎ ¦ 0 ≟ 5432 ¦ 543211 ¦ 44321 ¦ 54322 ¦ 5x321", key=int)
)
def test_ends_pays_the_first_and_the_last_digit(paid, completion):
    task, row = get_task("reverse_digits", reward="ends"), {"answer": "54321"}
    assert task.reward(completion, row) == paid
    assert task.verify(completion, row) is (completion == "54321")
    with pytest.raises(ValueError, match="reward='first'"):
        get_task("reverse_digits", reward="first")
