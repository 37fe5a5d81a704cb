from collections import Counter

import pytest

from tasks import get_task
from tasks.parity import parity


@pytest.mark.parametrize(
    "bits, answer", [("0000", "even"), ("0001", "odd"), ("1001", "even"), ("10110", "odd"), ("", "even")]
)
def test_parity(bits, answer):
    assert parity(bits) == answer


@pytest.mark.parametrize("level", [1, 3])
def test_lengths_and_answers(level):
    lengths = set()
    for row in get_task("parity", level=level).rows("train", 500):
        question, bits = row["prompt"][0]["content"].split("? ")
        assert question == "ones even or odd"
        assert set(bits) <= {"0", "1"}
        assert row["answer"] == ["even", "odd"][sum(map(int, bits)) % 2]
        lengths.add(len(bits))
    assert lengths == set(range(4, 4 * level + 9))


def test_answers_are_balanced():
    counts = Counter(get_task("parity").rows("train", 2000)["answer"])
    # Four standard deviations of 2000 fair draws are 89.
    assert abs(counts["even"] - 1000) < 90


def test_verify():
    task = get_task("parity")
    assert task.verify("odd\n", {"answer": "odd"})
    for completion in ("even", "Odd or even", "odd even", "o", ""):
        assert not task.verify(completion, {"answer": "odd"})
