"""pass@k of evaluations during training: by hand, with rewards that differ from the verdicts."""

import pytest
from datasets import Dataset
from run_record import read_rows as read
from tiny_run import constant, vowels
from trl import GRPOTrainer

from trl_prorl.errors import RewardError
from trl_prorl.evaluation import measure_pass_at_k, pass_k_values
from trl_prorl.tasks import get_task
from trl_prorl.train import task_reward


def say(count, **columns):
    return Dataset.from_dict({"prompt": [[{"role": "user", "content": f"tell {i}"}] for i in range(count)], **columns})


def judged(verdicts, rewards=None):
    """
    A reward function of given rewards, whose verifier gives these verdicts, completion by completion of an evaluation;
    in training nothing is right.
    """
    verdicts = iter(verdicts)
    rewards = iter(rewards or [])

    def reward(completions, **columns):
        return [next(rewards, 0.5) for _ in completions]

    def verifier(prompts, completions, **columns):
        evaluates = prompts[0][0]["content"].startswith("tell")
        return [next(verdicts) if evaluates else False for _ in completions]

    reward.batch_verifier = verifier
    return reward


EVALUATED = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8, "num_iterations": 1}


def passes(row):
    return {name: value for name, value in row.items() if "pass@" in name}


def test_draws_are_of_powers_of_two_up_to_the_completions():
    assert [pass_k_values(n) for n in (1, 2, 3, 8, 15)] == [[1], [1, 2], [1, 2], [1, 2, 4, 8], [1, 2, 4, 8]]


def test_measurements_by_hand():
    # Three prompts of four: 1, 4 and 0 correct. pass@2 of one in four is 1 − 3/6.
    correct = [False, True, False, False, *[True] * 4, *[False] * 4]
    assert measure_pass_at_k(correct, [None] * 12, 4) == {
        "pass@1": pytest.approx((0.25 + 1 + 0) / 3),
        "pass@2": pytest.approx((0.5 + 1 + 0) / 3),
        "pass@4": pytest.approx(2 / 3),
    }
    tasks = ["code"] * 4 + ["gsm8k"] * 4 + ["code"] * 4
    of_tasks = measure_pass_at_k(correct, tasks, 4)
    assert of_tasks["pass@2/code"] == pytest.approx(0.25)
    assert of_tasks["pass@2/gsm8k"] == 1.0
    assert len(of_tasks) == 9
    assert of_tasks["pass@1"] == pytest.approx(1.25 / 3)
    assert set(measure_pass_at_k(correct, ["code"] * 12, 4)) == {"pass@1", "pass@2", "pass@4"}
    assert measure_pass_at_k([], [], 4) == {}


def test_an_evaluation_says_what_is_correct_and_not_what_was_rewarded(run):
    # Two prompts of four completions: 1 and 2 correct, then none, then all.
    verdicts = [0, 1, 0, 0, 1, 0, 0, 1] + [0] * 8 + [1] * 8
    given = {"max_steps": 2, "eval_on_start": True, "trainer_kwargs": {"eval_dataset": say(2)}}
    trainer = run(reward=judged(verdicts), **given, **EVALUATED)
    rows = read(trainer, "evaluations.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert all(row["eval_reward"] == 0.5 for row in rows)
    assert passes(rows[0]) == {
        "eval_pass@1": pytest.approx((1 / 4 + 2 / 4) / 2),
        "eval_pass@2": pytest.approx((1 - 3 / 6 + 1 - 1 / 6) / 2),
        "eval_pass@4": 1.0,
    }
    assert set(passes(rows[1]).values()) == {0.0}
    assert set(passes(rows[2]).values()) == {1.0}
    # In TRL's own log as well, beside its reward.
    (logged,) = [entry for entry in trainer.state.log_history if "eval_pass@2" in entry and entry["step"] == 1]
    assert logged["eval_pass@1"] == 0.0
    assert logged["eval_reward"] == 0.5
    assert not any("pass@" in name for row in read(trainer, "metrics.jsonl") for name in row)


def test_several_validation_sets_have_each_its_own(run):
    # TRL gives their rewards one name. Eight verdicts of `easy`, then four of `hard`.
    steps = [([1] * 8, [0, 0, 0, 1]), ([1] * 8, [0] * 4), ([0] * 8, [0, 0, 1, 1])]
    verdicts = [verdict for easy, hard in steps for verdict in (*easy, *hard)]
    keys = {
        "beta": 0.1,
        "ref_reset_stall": 1,
        "ref_reset_metric": "eval_hard_pass@1",
        "max_steps": 3,
        "trainer_kwargs": {"eval_dataset": {"easy": say(2), "hard": say(1)}},
        **EVALUATED,
    }
    trainer = run(reward=judged(verdicts), **keys | {"per_device_eval_batch_size": 4})
    rows = read(trainer, "evaluations.jsonl")
    assert [row["eval_easy_pass@1"] for row in rows] == [1.0, 1.0, 0.0]
    assert [row["eval_hard_pass@1"] for row in rows] == [0.25, 0.0, 0.5]
    assert "eval_pass@1" not in rows[0]
    assert [(e["step_requested"], e["value"]) for e in read(trainer, "events.jsonl")] == [(2, 0.0)]


def test_a_run_with_verdicts_trains_as_trl_does(run, largest_difference):
    """Every key at its default: to judge completions changes neither the training nor the other metrics."""
    given = {"trainer_kwargs": {"eval_dataset": say(2)}, "max_steps": 3, **EVALUATED}
    theirs = run(cls=GRPOTrainer, reward=vowels_judged, **given)
    ours = run(reward=vowels_judged, **given)
    assert largest_difference(theirs, ours) == 0.0
    for log in zip(theirs.state.log_history, ours.state.log_history, strict=True):
        for name in ("eval_reward", "eval_loss", "reward"):
            assert (log[0].get(name)) == log[1].get(name)


def vowels_judged(completions, **columns):
    return vowels(completions)


vowels_judged.batch_verifier = lambda completions, **columns: [len(c[-1]["content"]) % 2 == 0 for c in completions]


@pytest.mark.parametrize(
    "metric, reward",
    [
        ("eval_pass@1", constant(0.0)),  # no verifier
        ("eval_pass@3", vowels_judged),  # no power of two
        ("eval_pass@8", vowels_judged),  # more than there are
        ("eval_pass@1/cod", vowels_judged),  # no task
    ],
)
def test_a_pass_at_k_that_is_not_measured_is_refused_by_the_first_evaluation(make_trainer, metric, reward):
    given = {"eval_dataset": say(3, task=["code", "math", "math"])}
    keys = {"beta": 0.1, "ref_reset_stall": 1, "ref_reset_metric": metric, "trainer_kwargs": given}
    trainer = make_trainer(reward=reward, **EVALUATED, **keys)
    with pytest.raises(ValueError, match=f"'{metric}'.* eval_reward"):
        trainer.train()
    assert trainer.state.global_step == 1


def test_two_verifiers_are_refused_unless_one_is_given(make_trainer):
    right = constant(True)
    make_trainer(reward=[constant(0.0, right), constant(1.0, right)])  # the same
    two = [constant(0.0, right), constant(1.0, constant(False))]
    with pytest.raises(ValueError, match="2 reward functions have a batch_verifier"):
        make_trainer(reward=two)
    make_trainer(reward=two, trainer_kwargs={"verify": lambda completion, row: True})


@pytest.mark.parametrize("verdict, told", [(None, "None"), (0.5, "0.5"), (ZeroDivisionError, "raised")])
def test_a_verifier_that_does_not_say_stops_the_run(make_trainer, verdict, told):
    def verifier(completions, **columns):
        return [1 / 0 if verdict is ZeroDivisionError else verdict for _ in completions]

    given = {"trainer_kwargs": {"eval_dataset": say(2)}, **EVALUATED}
    trainer = make_trainer(reward=constant(0.0, verifier), **given)
    with pytest.raises(RewardError, match=f"verifier.*{told}"):
        trainer.train()


def test_a_task_s_verifier_is_its_verify_and_not_its_reward():
    """The wrong answer `1 2 2 3` to `1 1 2 3` has the full reward."""
    reward = task_reward(get_task("sorting", level=1, reward="inclusion_ordering"))
    completions = [[{"role": "assistant", "content": text}] for text in ("1 2 2 3", "1 1 2 3")]
    columns = {"answer": ["1 1 2 3"] * 2, "prompt": ["sort"] * 2}
    assert reward(completions, **columns) == [1.0, 1.0]
    assert reward.batch_verifier(completions, **columns) == [False, True]


def test_a_verifier_of_one_completion_judges_training_and_evaluations(run):
    """It accepts two of four prompts of the evaluation, and those of task a, whose reward is not full."""
    seen = []

    def is_correct(completion, row):
        seen.append((completion, row))
        return row["right"]

    rows = {"task": ["a"] * 8 + ["b"] * 8, "right": [True] * 8 + [False] * 8}
    evaluated = say(4, right=[True, True, False, False])
    given = {"verify": is_correct, "eval_dataset": evaluated}
    trained = run(reward=constant(0.5), columns=rows, trainer_kwargs=given, guard_gap=0.1, max_steps=2, **EVALUATED)
    for row in read(trained.run_dir, "evaluations.jsonl"):
        assert passes(row) == {"eval_pass@1": 0.5, "eval_pass@2": 0.5, "eval_pass@4": 0.5}
    for row in read(trained.run_dir):
        assert (row.get("pass_rate/a", 1.0), row.get("pass_rate/b", 0.0)) == (1.0, 0.0)  # and not the reward's 0
        assert row["accuracy"] in (0.0, 0.5, 1.0)
    assert all(isinstance(completion, str) and row["prompt"][0]["role"] == "user" for completion, row in seen)
