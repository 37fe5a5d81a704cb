"""Findings about the data: reference answers, splits, lengths."""

import math

import pytest

from trl_prorl.errors import RewardError
from trl_prorl.eval.readiness.data import check_gold_answers, held_out_prompts, length_findings, split_findings
from trl_prorl.eval.readiness.finding import LOOK, STOP
from trl_prorl.tasks import get_task


@pytest.mark.parametrize("name", ["reverse_digits", "sorting"])
def test_tasks_of_the_project_pass(name):
    task = get_task(name)
    findings, tells = check_gold_answers(task, list(task.rows("train", 24)), task.reward_many)
    assert [finding.level for finding in findings] == ["fine"] * 3
    assert findings[1].values["rows"] == 24
    assert tells


class Judged:
    """A task with these verdicts on reference answers, and then on answers of other rows."""

    def __init__(self, *verdicts):
        self.verdicts = iter(verdicts)

    def gold(self, row):
        return row["answer"]

    def verify_many(self, texts, rows):
        return next(self.verdicts)


ROWS = [{"answer": "1"}, {"answer": "2"}, {"answer": "3"}]
NAN = math.nan
YES = [True] * 3
NO = [False] * 3


@pytest.mark.parametrize(
    ("verdicts", "rewards", "expected", "levels", "number"),
    [
        # Verdicts on reference answers and on answers of other rows; rewards of both.
        ((NO, NO), ([0.0] * 3, [0.0] * 3), None, [STOP, "fine", "fine"], "0.00, 0.00"),
        (([True, False, True], NO), ([1.0] * 3, [0.0] * 3), True, [LOOK, "fine", "fine"], "1.00, 0.00"),
        ((YES, [True, True, False]), ([0.5] * 3, [1.0, 1.0, 0.5]), False, ["fine", LOOK, LOOK], "0.50, 0.83"),
        # An answer that is correct by chance gets the reward of a correct one.
        ((YES, [True, False, False]), ([1.0] * 3, [1.0, 0.0, 0.0]), True, ["fine", LOOK, "fine"], "1.00, 0.33"),
        ((YES, YES), ([1.0] * 3, [1.0] * 3), None, ["fine", LOOK, "fine"], "1.00, 1.00"),
        # None from a reward function is no number.
        ((YES, NO), ([1.0, NAN, 1.0], [0.0, NAN, 0.0]), True, ["fine"] * 3, "1.00, 0.00"),
        ((YES, NO), ([NAN] * 3, [NAN] * 3), None, ["fine", "fine", LOOK], "none"),
    ],
)
def test_gold_answers_and_their_rewards(verdicts, rewards, expected, levels, number):
    given = iter(rewards)
    findings, tells = check_gold_answers(Judged(*verdicts), ROWS, lambda texts, rows: next(given))
    assert tells is expected
    assert [finding.level for finding in findings] == levels
    assert findings[-1].number == number


def test_a_reward_that_needs_a_rollout_is_not_wrong():
    def reward(texts, rows):
        raise RewardError("reward function 'steps' raised KeyError: 'steps'.")

    findings, tells = check_gold_answers(Judged(YES, NO), ROWS, reward)
    assert tells is None
    assert findings[-1].level == LOOK
    assert "KeyError: 'steps'" in findings[-1].change


def test_questions_without_a_reference_answer_stop_nothing():
    nothing, tells = check_gold_answers(Judged(), [{"answer": ""}] * 3, None)
    assert [finding.level for finding in nothing] == ["fine"]
    assert tells is None
    some, _ = check_gold_answers(Judged([True], []), [{"answer": ""}, {"answer": "1"}], None)
    assert some[0].number == "1 of 1"


def test_only_answers_of_the_same_task_that_differ_are_tried():
    tried = []
    task = Judged([True] * 4, NO)
    task.verify_many = lambda texts, rows: tried.append(texts) or next(task.verdicts)
    check_gold_answers(task, [{"answer": answer, "task": name} for answer, name in ("1a", "1a", "2b", "3a")])
    assert tried == [["1", "1", "2", "3"], ["3", "3", "1"]]


def chat(text):
    return [{"role": "user", "content": text}]


def test_held_out_sets_share_prompts_with_training_by_content():
    held_out = {"validation": [chat("a b"), chat("d")], "test": ["e"]}
    findings = split_findings([chat("a  b"), chat("c")], held_out)
    assert [finding.number for finding in findings] == ["1 of 2", "0 of 1"]
    assert [finding.level for finding in findings] == [LOOK, "fine"]


def test_what_the_run_evaluates_on_is_compared_with_training():
    task = get_task("sums")
    rows = task.rows("train", 8)
    assert set(held_out_prompts({"easy": rows, "hard": rows}, task)) == {"easy", "hard", "test"}
    assert held_out_prompts(rows) == {"validation": list(rows["prompt"])}
    assert held_out_prompts(None, task, seed=5) == {"test": list(task.rows("test", 128, seed=5)["prompt"])}


def test_lengths_by_hand():
    room, gold = length_findings([10, 20], [3, 8], 8, 27)
    assert (room.number, room.level) == ("20 tokens, 28 of 27", LOOK)
    assert (gold.number, gold.level) == ("1 of 2 (longest 8 of 8 tokens)", LOOK)  # no room for the end
    assert "max_completion_length: 9" in gold.change
    assert [finding.level for finding in length_findings([10, 20], [3, 8], 9, 29)] == ["fine", "fine"]


def test_a_short_test_split_is_compared_whole():
    class Short:
        def rows(self, split, n, seed=0):
            if n is not None and n > 3:
                raise ValueError("3 rows")
            return {"prompt": ["a", "b", "c"]}

    assert held_out_prompts(None, Short()) == {"test": ["a", "b", "c"]}
