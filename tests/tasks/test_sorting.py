from itertools import combinations_with_replacement, product

import pytest

from trl_prorl.tasks import get_task
from trl_prorl.tasks.sorting import REWARDS


ROW = {"answer": "1 3 7 9"}
# Of four numbers: the wrong count, or not numbers.
NO_ANSWER = [
    "0 1 2",
    "0 1 2 3 3",
    "0 1 2 x",
    "0 1 2 x 3",
    "00 1 2 3",
    "0, 1, 2, 3",
    "0 1 2 nan",
    "0 1 2 inf",
    "0 1 2 ٣",
    "",
]


@pytest.mark.parametrize("level", [1, 8])
def test_lengths_and_answers(level):
    for row in get_task("sorting", level=level).rows("train", 100):
        digits = row["prompt"][0]["content"].removeprefix("sort ").split(" ")
        assert len(digits) == level + 3
        assert row["answer"] == " ".join(sorted(digits))


@pytest.mark.parametrize("reward", REWARDS)
def test_verify_is_the_same_for_every_reward(reward):
    task = get_task("sorting", reward=reward)
    for right in ("1 3 7 9", " 1\t3\n7  9 "):
        assert task.verify(right, ROW)
        assert task.reward(right, ROW) == 1.0
    for wrong in ("1 3 9 7", "1379", "1, 3, 7, 9", "01 3 7 9", "1.0 3 7 9", "1 3 7", "1 3 7 9 9", ""):
        assert not task.verify(wrong, ROW)
        assert task.reward(wrong, ROW) < 1.0
        assert get_task("sorting").reward(wrong, ROW) == 0.0  # exact is the default


@pytest.mark.parametrize(
    "required, completion, distance, inclusion_ordering",
    [
        ("0 1 2 3", "0 1 2 3", 1.0, 1.0),
        # Only the third position matches; only 2 of the question occurs; 2 2 and 2 5 are in order, 7 2 is not.
        ("0 1 2 3", "7 2 2 5", 1 / 4, (1 + 2) / 7),
        # Only the first position matches; all occur; 0 3 and 1 2 are in order, 3 1 is not.
        ("0 1 2 3", "0 3 1 2", 1 / 4, (4 + 2) / 7),
        ("0 1 2 3", "3 2 1 0", 0.0, (4 + 0) / 7),
        ("0 1 2 3", "4 5 6 7", 0.0, (0 + 3) / 7),
        # Equal neighbours are in order; 1 is one number of the question, however often it is given.
        ("0 1 2 3", "1 1 1 1", 1 / 4, (1 + 3) / 7),
        # A number that the question has twice is two of its numbers, and one occurrence serves both.
        ("1 1 2", "2 1 9", 1 / 3, (3 + 1) / 5),
        ("1 1 2", "1 2 2", 2 / 3, 1.0),
        # Numbers are compared as numbers, negative and large ones too.
        ("1 3 7 9", "-5 1 10 9", 1 / 4, (2 + 2) / 7),
        ("1 3 7 9", "1 3 2" + "0" * 5000 + " 1" + "0" * 5000, 2 / 4, (2 + 2) / 7),
        *(("0 1 2 3", completion, 0.0, 0.0) for completion in NO_ANSWER),
    ],
)
def test_distance_and_inclusion_ordering_by_hand(required, completion, distance, inclusion_ordering):
    row = {"answer": required}
    assert get_task("sorting", reward="distance").reward(completion, row) == pytest.approx(distance)
    task = get_task("sorting", reward="inclusion_ordering")
    assert task.reward(completion, row) == pytest.approx(inclusion_ordering)
    assert task.verify(completion, row) is (completion == required)


def test_inclusion_ordering_gives_1_to_right_answers_and_where_digits_repeat_to_others():
    """Every question and every answer of three digits from 0 to 3."""
    task = get_task("sorting", reward="inclusion_ordering")
    digits = "0123"
    wrong = 0
    for question in combinations_with_replacement(digits, 3):
        row = {"answer": " ".join(question)}
        for answer in product(digits, repeat=3):
            full = task.reward(" ".join(answer), row) == 1.0
            assert full == (set(question) <= set(answer) and list(answer) == sorted(answer))
            if answer == question:
                assert full
            elif full:
                assert len(set(question)) < len(question)
                wrong += 1
    assert wrong > 0
