"""Findings about the data: reference answers, splits, lengths."""

import math

import pytest

from trl_prorl.errors import RewardError
from trl_prorl.eval.readiness.data import (
    GoldAnswers,
    check_gold_answers,
    gold_findings,
    held_out_prompts,
    length_findings,
    split_findings,
)
from trl_prorl.eval.readiness.finding import LOOK, STOP
from trl_prorl.tasks import get_task


@pytest.mark.parametrize("name", ["reverse_digits", "sorting"])
def test_tasks_of_the_project_pass(name):
    task = get_task(name)
    rows = list(task.rows("train", 24))
    found = check_gold_answers(task, rows, task.reward_many)
    assert len(found.accepted) == 24
    assert {finding.level for finding in gold_findings(found)} == {"fine"}
    assert all(task.has_answer(task.gold(row), row) for row in rows)


NAN = math.nan
YES = [True] * 3
NO = [False] * 3


@pytest.mark.parametrize(
    ("answers", "tells", "levels", "number"),
    [
        # Verdicts on reference answers and on answers of other rows; rewards of both.
        ((NO, NO, [0.0] * 3, [0.0] * 3), None, [STOP, "fine", "fine"], "0.00, 0.00"),
        (([True, False, True], NO, [1.0] * 3, [0.0] * 3), True, [LOOK, "fine", "fine"], "1.00, 0.00"),
        ((YES, [True, True, False], [0.5] * 3, [1.0, 1.0, 0.5]), False, ["fine", LOOK, LOOK], "0.50, 0.83"),
        # An answer that is correct by chance gets the reward of a correct one.
        ((YES, [True, False, False], [1.0] * 3, [1.0, 0.0, 0.0]), True, ["fine", LOOK, "fine"], "1.00, 0.33"),
        ((YES, YES, [1.0] * 3, [1.0] * 3), None, ["fine", LOOK, "fine"], "1.00, 1.00"),
        # None from a reward function is no number.
        ((YES, NO, [1.0, NAN, 1.0], [0.0, NAN, 0.0]), True, ["fine"] * 3, "1.00, 0.00"),
        ((YES, NO, [NAN] * 3, [NAN] * 3), None, ["fine", "fine", LOOK], "none"),
    ],
)
def test_gold_answers_and_their_rewards(answers, tells, levels, number):
    found = GoldAnswers(*answers)
    findings = gold_findings(found)
    assert found.reward_tells is tells
    assert [finding.level for finding in findings] == levels
    assert findings[-1].number == number


def test_a_reward_that_needs_a_rollout_is_not_wrong():
    def reward(texts, rows):
        raise RewardError("reward function 'steps' raised KeyError: 'steps'.")

    task = get_task("sums")
    found = check_gold_answers(task, list(task.rows("train", 4)), reward)
    assert found.reward_tells is None
    last = gold_findings(found)[-1]
    assert last.level == LOOK
    assert "KeyError: 'steps'" in last.change


def test_only_answers_of_the_same_task_that_differ_are_tried():
    class Same:
        def gold(self, row):
            return row["answer"]

        def verify_many(self, texts, rows):
            return [text == row["answer"] for text, row in zip(texts, rows, strict=True)]

    rows = [{"answer": "1", "task": "a"}, {"answer": "1", "task": "a"}, {"answer": "2", "task": "b"}]
    assert check_gold_answers(Same(), rows).accepted == []
    rows.append({"answer": "3", "task": "a"})
    assert check_gold_answers(Same(), rows).accepted == [False] * 3


def chat(text):
    return [{"role": "user", "content": text}]


def test_splits_share_prompts_by_content():
    splits = {"train": [chat("a  b"), chat("c")], "validation": [chat("a b"), chat("d")], "test": ["e"]}
    findings = split_findings(splits)
    assert [finding.number for finding in findings] == ["1 of 2", "0 of 1", "0 of 1"]
    assert [finding.level for finding in findings] == [LOOK, "fine", "fine"]


def test_what_the_run_evaluates_on_is_compared_with_training():
    task = get_task("sums")
    rows = task.rows("train", 8)
    assert set(held_out_prompts(None, task)) == {"validation", "test"}
    assert set(held_out_prompts({"train": rows, "hard": rows}, task)) == {"eval_train", "eval_hard", "test"}
    assert held_out_prompts(rows) == {"validation": list(rows["prompt"])}
    assert held_out_prompts(None, task, seed=5)["test"] == list(task.rows("test", 128, seed=5)["prompt"])


def test_lengths_by_hand():
    room, gold = length_findings([10, 20], [3, 8], 8, 27)
    assert (room.number, room.level) == ("20 tokens, 28 of 27", LOOK)
    assert (gold.number, gold.level) == ("1 of 2 (longest 8 of 8 tokens)", LOOK)  # no room for the end
    assert "max_completion_length: 9" in gold.change
    assert [finding.level for finding in length_findings([10, 20], [3, 8], 9, 29)] == ["fine", "fine"]
