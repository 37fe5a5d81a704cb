"""A run that no longer improves: when it ends, by hand and as in transformers; what is left of it; its resume."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
from run_record import read_events, read_rows
from tiny_run import QUESTIONS, vowels
from transformers import EarlyStoppingCallback
from trl import GRPOTrainer

from trl_prorl import ProRLConfig
from trl_prorl.resets import configured_callback
from trl_prorl.watch import configured_alarms


RESETS = {"beta": 0.1, "ref_reset_stall": 2}
# Keys; values of the evaluations, one after each step; the steps of the resets, and of the end.
TABLE = [
    ({"stop_stall": 3}, [1, 2, 2, 1, 2, 9], [], 5),
    ({"stop_stall": 2}, [5, math.nan, 4, None, 4], [], 5),
    ({"stop_stall": 2, "ref_reset_min_delta": 0.5}, [1, 1.4, 1.8, 2.2, 2.3], [], 5),
    (RESETS | {"stop_stall": 2}, [5, 4, 4, 4, 4], [3], 5),
    (RESETS | {"stop_stall": 1}, [5, 4, 4, 4], [3], 4),
    (RESETS | {"stop_stall": 5}, [5, 4, 4, 4, 4, 4, 4, 4], [3, 5, 7], 8),
    # A gain sets both back.
    (RESETS | {"stop_stall": 2}, [5, 4, 4, 4, 6, 5, 5, 5, 5], [3, 7], 9),
    # The reset of step 5 is asked for at step 4, within the cooldown.
    (RESETS | {"ref_reset_stall": 1, "stop_stall": 1, "ref_reset_cooldown": 3}, [5, 4, 6, 5, 5, 5], [2, 5], 6),
    # Resets by steps: alone they change nothing; with `ref_reset_stall` the first one after the gain is the reset.
    ({"beta": 0.1, "ref_reset_every": 2, "stop_stall": 3}, [5, 4, 4, 4], [2], 4),
    (RESETS | {"ref_reset_stall": 9, "ref_reset_every": 3, "stop_stall": 2}, [5, 4, 4, 4, 4], [3], 5),
]


@pytest.mark.parametrize("keys, values, resets, end", TABLE)
def test_where_a_run_resets_and_ends(keys, values, resets, end):
    args = ProRLConfig(use_cpu=True, bf16=False, eval_strategy="steps", eval_steps=1, **keys)
    callback = configured_callback(args)
    callback.in_training = True
    stop = configured_alarms(args, request=None)["stall_stop"]
    found = []
    for step, value in enumerate(values, start=1):
        metrics = {"eval_reward": value}
        callback.observe_row(step, {})
        callback.on_evaluate(None, SimpleNamespace(global_step=step), None, metrics=metrics)
        ended = stop.on_evaluation(step, metrics) is not None
        if ended:
            break
        if callback.requests:
            found.append(step)
            callback.requests.clear()
            callback.applied(step)
            stop.on_event({"event": "reset", "step_applied": step})
    assert (found, ended, step) == (resets, True, end)


EVALUATED = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8, "max_steps": 9}
BY_REWARD = {"metric_for_best_model": "eval_reward", "greater_is_better": True}


def scripted(values):
    """Reward training as usual, and give all completions of each evaluation the next value."""
    left = iter(values)

    def reward(prompts, completions, **columns):
        is_evaluation = prompts[0] == QUESTIONS["eval_dataset"][0]["prompt"]
        return [next(left)] * len(completions) if is_evaluation else vowels(completions)

    return reward


def checkpoints(trainer):
    return sorted(path.name for path in Path(trainer.args.output_dir).glob("checkpoint-*"))


def test_the_best_checkpoint_is_kept_and_named(run, largest_difference):
    """Saved at each new best, although `save_steps` never comes; TRL with its callback ends at the same step."""
    values = [0.2, 0.6, 0.5, 0.6, 0.1, 0.9]
    keys = {**EVALUATED, "trainer_kwargs": QUESTIONS, "save_strategy": "steps", "save_steps": 100}
    stopped = run(reward=scripted(values), stop_stall=3, save_total_limit=2, **keys)
    control = {**keys, **BY_REWARD, "trainer_kwargs": {**QUESTIONS, "callbacks": [EarlyStoppingCallback(3)]}}
    of_trl = run(GRPOTrainer, reward=scripted(values), **control)
    assert stopped.state.global_step == of_trl.state.global_step == 5
    assert largest_difference(stopped, of_trl) == 0.0
    (event,) = read_events(stopped)
    assert (event["event"], event["step_applied"], event["action"]) == ("stall", 5, "stop")
    assert (event["checkpoint"], event["best"]) == ("checkpoint-2", pytest.approx(0.6))
    assert (event["value"], event["threshold"]) == (pytest.approx(0.1), pytest.approx(0.6))
    assert checkpoints(stopped) == ["checkpoint-2", "checkpoint-5"]
    assert Path(stopped.state.best_model_checkpoint) == Path(stopped.args.output_dir, "checkpoint-2")


SAVED = {**EVALUATED, "save_strategy": "steps", "save_steps": 1, "trainer_kwargs": QUESTIONS}


def test_a_run_that_has_ended_so_trains_on_only_if_a_key_is_changed(run, resume, largest_difference):
    whole = run(reward=scripted([0.5] * 9), stop_stall=2, **SAVED)
    out = {"output_dir": whole.args.output_dir}
    again = resume(whole, 3, reward=scripted([]), stop_stall=2, **SAVED, **out)
    assert largest_difference(whole, again) == 0.0
    assert [row["step"] for row in read_rows(whole)] == [1, 2, 3]
    assert [event["event"] for event in read_events(whole)] == ["stall"]
    longer = resume(whole, 3, reward=scripted([0.5] * 9), stop_stall=4, allow_config_change=True, **SAVED, **out)
    assert longer.state.global_step == 5
    assert [event["step_applied"] for event in read_events(longer, "stall")] == [3, 5]


def test_a_stall_first_resets_and_a_resume_after_the_reset_ends_where_the_run_does(run, resume, largest_difference):
    keys = {**SAVED, **RESETS, "num_iterations": 1, "stop_stall": 2}
    whole = run(reward=scripted([0.5] * 9), **keys)
    assert [(event["event"], event["step_applied"]) for event in read_events(whole)] == [("reset", 3), ("stall", 5)]
    again = resume(whole, 4, reward=scripted([0.5] * 9), **keys)
    assert again.state.global_step == 5
    assert largest_difference(whole, again) == 0.0


def test_the_value_before_the_first_step_does_not_count(run):
    """No checkpoint has it."""
    trainer = run(reward=scripted([0.9, 0.1, 0.2, 0.3, 0.2, 0.2]), stop_stall=2, eval_on_start=True, **SAVED)
    assert trainer.state.global_step == 5
    assert Path(trainer.state.best_model_checkpoint).name == "checkpoint-3"


@pytest.mark.parametrize("then, now, end", [(0, 2, 7), (2, 0, 4)])
def test_the_count_begins_again_when_a_reset_comes_first_from_now_on_or_no_longer(run, resume, then, now, end):
    """
    The first evaluation is the best one. The run goes on at step 2, with resets by their KL in any case. A trigger
    that begins then takes step 3 for its best, and asks for a reset at 5.
    """
    keys = {**SAVED, "num_iterations": 1, "beta": 0.1, "ref_reset_kl": 9.0, "stop_stall": 2}
    before = run(reward=scripted([0.5] * 9), ref_reset_stall=then, **{**keys, "max_steps": 2})
    keys |= {"output_dir": before.args.output_dir, "allow_config_change": True}
    assert resume(before, 2, reward=scripted([0.5] * 9), ref_reset_stall=now, **keys).state.global_step == end


def test_a_guard_that_stops_at_an_evaluation_keeps_its_checkpoint(run):
    """No evaluation is better than the first, so `save_strategy: best` would save none."""
    keys = {**EVALUATED, "save_strategy": "best", "trainer_kwargs": QUESTIONS, **BY_REWARD}
    keys |= {"entropy_floor": 100.0, "entropy_patience": 3, "entropy_stop": True}
    assert checkpoints(run(reward=scripted([0.5] * 9), **keys)) == ["checkpoint-1", "checkpoint-3"]
