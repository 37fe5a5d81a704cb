import warnings
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trl_prorl.tasks import get_task, task_of_recipe
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
    "weights, n, counts",
    [([1, 1], 4, [2, 2]), ([0.5, 0.3, 0.2], 10, [5, 3, 2]), ([2, 1], 4, [3, 1]), ([1, 1000], 3, [0, 3])],
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


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_rows(mixture, split):
    rows = mixture.rows(split, 40, seed=3)
    assert Counter(rows["task"]) == {"sorting": 20, "easy": 10, "stem": 10}
    # No long stretch of one task.
    assert all(len(set(rows["task"][i : i + 8])) == 3 for i in range(0, 40, 8))
    for name, options in {"sorting": {"level": 1}, "stem": {}}.items():
        own = get_task(name, **options).rows(split, rows["task"].count(name), 3)
        ours = [row for row in rows if row["task"] == name]
        assert all(row[column] == value for row, mine in zip(ours, own, strict=True) for column, value in mine.items())
        assert ours[0]["tests"] is None
    assert {row["level"] for row in rows if row["task"] == "easy"} == {1}
    assert mixture.rows(split, 9, seed=3)["prompt"] == rows["prompt"][:9]  # fewer are the first of more


def test_every_row_is_its_own_tasks(mixture):
    rows = list(mixture.rows("test", 16))
    gold = [mixture.gold(row) for row in rows]
    assert mixture.verify_many(gold, rows) == [True] * 16
    assert mixture.reward_many(gold, rows) == [1.0] * 16
    assert all(mixture.verify(text, row) for text, row in zip(gold, rows, strict=True))
    # Another row's answer is wrong, and sorting grades it by its own reward.
    turned = gold[1:] + gold[:1]
    verdicts = mixture.verify_many(turned, rows)
    rewards = mixture.reward_many(turned, rows)
    one_by_one = [mixture.reward(text, row) for text, row in zip(turned, rows, strict=True)]
    assert rewards == one_by_one
    assert [reward == 1.0 for reward in rewards] == verdicts
    assert not all(verdicts)
    sorting = get_task("sorting", reward="distance", level=1)
    row = next(row for row in rows if row["task"] == "sorting")
    first, *rest = row["answer"].split()
    near = " ".join([first, *reversed(rest)])
    assert mixture.reward(near, row) == sorting.reward(near, row)
    assert 0 < mixture.reward(near, row) < 1


def test_names_with_weights_are_a_mixture():
    task = get_task("parity:1, sorting:3")
    assert Counter(task.rows("train", 8)["task"]) == {"parity": 2, "sorting": 6}
    recipe = task_of_recipe("parity:1,sorting:3")
    assert recipe.rows("train", 8)[:] == task.rows("train", 8)[:]


def test_a_recipes_keys_and_the_same_task_twice():
    tasks = {name: {"task": "parity", "level": level, "weight": 0.5} for name, level in (("easy", 1), ("hard", 8))}
    task = task_of_recipe("mixture", options={"tasks": tasks})
    assert task.members["hard"].level == 8
    assert task.rows("train", 4)["level"] == [1, 8, 1, 8]


@pytest.mark.parametrize(
    "options, message",
    [
        ({}, "tasks=None must map the names of tasks to weights"),
        ({"tasks": {}}, "tasks={} must map"),
        ({"tasks": ["parity"]}, "tasks=.'parity'. must map"),
        *(
            ({"tasks": {"parity": weight}}, f"the weight of 'parity' is {weight!r}; it must be a number above 0")
            for weight in (0, -1, True, "half", float("inf"), float("nan"))
        ),
        ({"tasks": {"parity": {"level": 2}}}, "the weight of 'parity' is None"),
        ({"tasks": {"parit": 1}}, "tasks, 'parit': name='parit' is not a task .did you mean 'parity'"),
        ({"tasks": {"parity": {"weight": 1, "level": 9}}}, "tasks, 'parity': level=9"),
        ({"tasks": {"parity": {"weight": 1, "levle": 2}}}, "tasks, 'parity': levle=2 .* mean 'level'"),
        ({"tasks": {"mixture": {"weight": 1, "tasks": {"parity": 1}}}}, "'mixture' is a mixture itself"),
        ({"tasks": {"inner": {"weight": 1, "task": "mixture"}}}, "'inner' is a mixture itself"),
    ],
)
def test_wrong_members(options, message):
    with pytest.raises(ValueError, match=message):
        get_task("mixture", **options)


@pytest.mark.parametrize(
    "name, message",
    [
        ("parity:0.5,sorting", "'sorting' is not a task and its weight, as in 'gsm8k:0.5,code:0.3'"),
        ("parity:0.5,", "'' is not a task and its weight"),
        ("parity:x,sorting:1", "'parity:x' is not a task and its weight"),
        ("parity:1,parity:2", "names 'parity' twice"),
        ("parity:1,rg:0", "the weight of 'rg' is 0"),
    ],
)
def test_wrong_names_with_weights(name, message):
    with pytest.raises(ValueError, match=message):
        get_task(name)


def test_names_with_weights_take_no_options():
    with pytest.raises(ValueError, match="task='parity:1,sorting:1' takes no level: write task: mixture.*task_opt"):
        task_of_recipe("parity:1,sorting:1", level=3)


@pytest.mark.parametrize(
    "split, n, message",
    [
        ("train", None, "n=None.*train_rows"),
        ("train", 2, "n=2: the weight 1 of 'stem' gives it no row"),
        ("dev", 8, "split='dev'"),
    ],
)
def test_wrong_requests(mixture, split, n, message):
    with pytest.raises(ValueError, match=message):
        mixture.rows(split, n)
