import pytest

from tasks import get_task


@pytest.mark.parametrize("level", [1, 3, 8])
def test_lengths_and_answers(level):
    lengths = set()
    for row in get_task("reverse_digits", level=level).rows("train", 300):
        verb, digits = row["prompt"][0]["content"].split(" ")
        assert verb == "reverse"
        assert digits.isdecimal() and digits.isascii()
        assert row["answer"] == "".join(reversed(digits))
        lengths.add(len(digits))
    assert lengths == set(range(3, level + 6))


def test_leading_zeros_occur():
    assert any(
        row["prompt"][0]["content"].startswith("reverse 0") for row in get_task("reverse_digits").rows("train", 100)
    )


@pytest.mark.parametrize(
    "completion, correct",
    [
        ("54321", True),
        (" 54321\n", True),
        ("12345", False),
        ("54321 54321", False),
        ("054321", False),
        ("5 4 3 2 1", False),
        ("54321.", False),
        ("", False),
    ],
)
def test_verify(completion, correct):
    task = get_task("reverse_digits")
    row = {"answer": "54321"}
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
    task, row = get_task("reverse_digits", reward="ends"), {"answer": "54321"}
    assert task.reward(completion, row) == paid
    assert task.verify(completion, row) is (completion == "54321")
    with pytest.raises(ValueError, match="reward='first'"):
        get_task("reverse_digits", reward="first")
