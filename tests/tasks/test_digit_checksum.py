import pytest

from tasks import get_task
from tasks.digit_checksum import digit_checksum


@pytest.mark.parametrize("digits, answer", [("000", "0"), ("12345", "5"), ("55", "0"), ("999", "7"), ("007", "7")])
def test_digit_checksum(digits, answer):
    assert digit_checksum(digits) == answer


@pytest.mark.parametrize("level", [1, 3])
def test_lengths_and_answers(level):
    lengths = set()
    for row in get_task("digit_checksum", level=level).rows("train", 300):
        question, digits = row["prompt"][0]["content"].split(": ")
        assert question == "digit sum mod 10"
        assert int(row["answer"]) == sum(map(int, digits)) % 10
        lengths.add(len(digits))
    assert lengths == set(range(3, level + 6))


def test_every_answer_occurs():
    assert set(get_task("digit_checksum").rows("train", 300)["answer"]) == set("0123456789")


def test_verify():
    task = get_task("digit_checksum")
    assert task.verify(" 5 ", {"answer": "5"})
    for completion in ("15", "05", "5.0", "٥", "0123456789", ""):
        assert not task.verify(completion, {"answer": "5"})
