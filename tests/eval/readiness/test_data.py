"""Findings of the data: gold answers, splits, lengths."""

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


def levels(findings):
    return {finding.what: finding.level for finding in findings}


@pytest.mark.parametrize("name", ["reverse_digits", "sums", "sorting", "parity", "bracket_matching"])
def test_tasks_of_the_project_pass(name):
    task = get_task(name)
    rows = list(task.rows("train", 24))
    found = check_gold_answers(task, rows, task.reward_many)
    assert all(found.verified)
    assert found.reward_tells
    assert all(task.has_answer(task.gold(row), row) for row in rows)
    assert len(found.accepted) == 24
    assert set(levels(gold_findings(found)).values()) == {"fine"}


def test_a_verifier_that_refuses_its_gold_stops():
    found = GoldAnswers([False] * 3, [False] * 3, [0.0] * 3, [0.0] * 3)
    first = gold_findings(found)[0]
    assert first.level == STOP
    assert first.number == "0 of 3"
    assert gold_findings(GoldAnswers([True, False], [], [], []))[0].level == LOOK


def test_a_verifier_that_accepts_anything_and_a_reward_that_pays_anything():
    findings = gold_findings(GoldAnswers([True] * 4, [True, True, False, False], [0.5] * 4, [1.0, 1.0, 0.5, 0.5]))
    assert [finding.level for finding in findings] == ["fine", LOOK, LOOK]
    assert findings[1].number == "2 of 4"
    assert findings[2].number == "0.50, 0.75"


def test_an_answer_that_is_right_by_chance_does_not_count_against_the_reward():
    """One of two other rows' answers is right, too: it is paid as a right one."""
    assert GoldAnswers([True] * 2, [True, False], [1.0] * 2, [1.0, 0.0]).reward_tells is True
    assert GoldAnswers([True] * 2, [True, True], [1.0] * 2, [1.0, 1.0]).reward_tells is None
    assert GoldAnswers([True], [], [], []).reward_tells is None


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
    assert findings[0].what == "prompts of validation in train"


def test_lengths_by_hand():
    findings = length_findings([10, 20], [3, 8], 8, 27)
    assert [finding.level for finding in findings] == [LOOK, LOOK]
    assert findings[0].number == "20 tokens, 28 of 27"
    assert findings[1].number == "1 of 2 (longest 8 of 8 tokens)"  # no room for the end
    assert findings[1].change == "set max_completion_length to 9 or more"
    assert [finding.level for finding in length_findings([10, 20], [3, 8], 9, 29)] == ["fine", "fine"]
    assert len(length_findings([10], [], None, None)) == 1


def test_none_from_a_reward_function_is_no_number():
    nan = math.nan
    some = GoldAnswers([True] * 3, [False] * 3, [1.0, nan, 1.0], [0.0, nan, 0.0])
    assert some.reward_tells is True
    assert gold_findings(some)[-1].number == "1.00, 0.00"
    assert gold_findings(some)[-1].level == "fine"
    none = GoldAnswers([True] * 3, [False] * 3, [nan] * 3, [nan] * 3)
    assert none.reward_tells is None
    assert gold_findings(none)[-1].level == LOOK
    assert "return None for right answers" in gold_findings(none)[-1].change


def test_a_reward_that_needs_a_rollout_is_not_wrong():
    def reward(texts, rows):
        raise RewardError("reward function 'steps' raised KeyError: 'steps'.")

    task = get_task("sums")
    found = check_gold_answers(task, list(task.rows("train", 4)), reward)
    assert all(found.verified)
    assert found.reward_tells is None
    assert found.rewards == []
    last = gold_findings(found)[-1]
    assert (last.number, last.level) == ("not known", LOOK)
    assert "KeyError: 'steps'" in last.change


def test_what_the_run_evaluates_on_is_compared_with_training():
    task = get_task("sums")
    rows = task.rows("train", 8)
    assert set(held_out_prompts(None, task)) == {"validation", "test"}
    assert held_out_prompts(rows)["validation"] == list(rows["prompt"])
    several = held_out_prompts({"train": rows, "hard": rows}, task)
    assert set(several) == {"eval_train", "eval_hard", "test"}
    assert held_out_prompts(None) == {}
    findings = split_findings({"train": list(rows["prompt"]), **held_out_prompts(rows)})
    assert [finding.number for finding in findings] == ["8 of 8"]
    assert findings[0].level == LOOK
    drawn = held_out_prompts(None, task, seed=5)["test"]
    assert drawn == list(task.rows("test", 128, seed=5)["prompt"])
