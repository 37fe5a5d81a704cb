import warnings
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trl_prorl.tasks import get_task
from trl_prorl.tasks.mixture import shares


@pytest.fixture(scope="module")
def mixture():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return get_task(
            "mixture",
            tasks={
                "sorting": {"weight": 2, "reward": "distance", "level": 1},
                "easy": {"task": "code", "level": 1, "weight": 1, "allow_weak_sandbox": True},
                "stem": 1,
            },
        )


@pytest.mark.parametrize(
    "weights, n, counts", [([0.5, 0.3, 0.2], 10, [5, 3, 2]), ([2, 1], 4, [3, 1]), ([1, 1000], 3, [0, 3])]
)
def test_shares(weights, n, counts):
    places = shares(weights, n)
    assert [places.count(i) for i in range(len(weights))] == counts


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 120))
def test_every_beginning_is_near_the_weights(weights, n):
    places = shares(weights, n)
    assert len(places) == n
    for k in range(1, n + 1):
        for i, weight in enumerate(weights):
            # Never ahead by one; behind by less than the number of others.
            ahead = places[:k].count(i) - k * weight / sum(weights)
            assert -len(weights) < ahead < 1 + 1e-9
    assert shares(weights, n + 7)[:n] == places


def test_rows(mixture):
    rows = mixture.rows("test", 40, seed=3)
    assert Counter(rows["task"]) == {"sorting": 20, "easy": 10, "stem": 10}
    own = get_task("sorting", level=1).rows("test", 20, 3)
    ours = [row for row in rows if row["task"] == "sorting"]
    assert all(row[column] == value for row, mine in zip(ours, own, strict=True) for column, value in mine.items())
    assert ours[0]["tests"] is None
    assert {row["level"] for row in rows if row["task"] == "easy"} == {1}
    assert mixture.rows("test", 9, seed=3)["prompt"] == rows["prompt"][:9]  # fewer are the first of more


def test_every_row_is_its_own_tasks(mixture):
    rows = list(mixture.rows("test", 16))
    gold = [mixture.gold(row) for row in rows]
    assert mixture.verify_many(gold, rows) == [True] * 16
    # Another row's answer is wrong, and sorting grades it by its own reward.
    turned = gold[1:] + gold[:1]
    pairs = list(zip(turned, rows, strict=True))
    rewards = mixture.reward_many(turned, rows)
    assert rewards == [mixture.reward(*pair) for pair in pairs]
    assert [reward == 1.0 for reward in rewards] == [mixture.verify(*pair) for pair in pairs]
    assert 1.0 > min(rewards)
    row = next(row for row in rows if row["task"] == "sorting")
    first, *rest = row["answer"].split()
    assert 0 < mixture.reward(" ".join([first, *reversed(rest)]), row) < 1
    assert mixture.answer_of("3  4", row) == "3 4"
