from ast import literal_eval

import pytest
from tables import pairs

from tasks import get_task
from tasks.sums import working


ROW = {"prompt": [{"role": "user", "content": "add 17 48 5"}], "working": "17+48=65 65+5=70", "answer": "70"}


@pytest.mark.parametrize("level", [1, 3, 8])
def test_numbers_and_answers(level):
    counts, digits = set(), set()
    for row in get_task("sums", level=level).rows("train", 300):
        verb, *terms = row["prompt"][0]["content"].split(" ")
        assert verb == "add" and all(term.isdecimal() and not term.startswith("0") for term in terms)
        assert row["answer"] == str(sum(int(term) for term in terms))
        counts.add(len(terms))
        digits.update(len(term) for term in terms)
    assert counts == set(range(2, level + 2)) and digits == {1, 2}


def test_the_working_by_hand():
    assert working([17, 48, 5]) == "17+48=65 65+5=70"
    assert working([99, 99, 2, 10]) == "99+99=198 198+2=200 200+10=210"
    assert get_task("sums").gold(ROW) == "17+48=65 65+5=70 #### 70"


def test_answers_of_level_3_are_short():
    task = get_task("sums")
    lengths = [len(task.gold(row)) for row in task.rows("train", 500)]
    assert 10 <= min(lengths) < 14 and 32 < max(lengths) <= 41


@pytest.mark.parametrize("reward", ["exact", "steps"])
@pytest.mark.parametrize(
    "correct, completion",
    pairs(
        """
        True ≟ 17+48=65 65+5=70 #### 70 ¦ 17+48=65⏎65+5=70⏎#### 70.0 ¦ #### 70 ¦ 17+48=55 55+5=60 #### 70
        False ≟ 17+48=65 65+5=70 ¦ 17+48=65 65+5=70 70 ¦ 17+48=65 65+5=70 #### 65 ¦ 17+48=65 65+5=70 #### 7
        17+48=65 65+5=70 #### 70 #### 65 ¦ 17+48=65 65+5=70 #### 65+5 ¦ 17+48=65 65+5=70 ### 70 ¦ #### ¦ ∅
        """,
        key=literal_eval,
    ),
)
def test_the_marked_sum_decides(reward, correct, completion):
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


@pytest.mark.parametrize("reward", ["step", "", None, 1, ["steps"]])
def test_unknown_reward(reward):
    with pytest.raises(ValueError, match="reward=.*exact, steps"):
        get_task("sums", reward=reward)
