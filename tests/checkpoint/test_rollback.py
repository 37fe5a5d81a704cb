"""A collapse, and the way back: to the same weights, killed or not, at a lower rate, and at most so many times."""

from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pandas as pd
import pytest
import torch
from run_record import read_events as events
from run_record import read_rows as rows
from run_record import without_times
from tiny_run import QUESTIONS, vowels
from torch.optim.lr_scheduler import OneCycleLR
from transformers import AutoModelForCausalLM, TrainerCallback

from trl_prorl import ProRLTrainer
from trl_prorl.errors import NonFiniteError, RewardError
from trl_prorl.extras.collapse import end_by_best
from trl_prorl.extras.rollback import Rollback
from trl_prorl.parts import Part


SAVES = {"save_strategy": "steps", "save_steps": 2, "max_steps": 6}


def test_the_rule_by_hand(tmp_path):
    # Best mean of ten: 1.0. Of 30 steps the last 10 % are 3, of which at least 10 count: (4 × 1.0 + 6 × 0.0) / 10.
    rewards = [0.5] * 10 + [1.0] * 14 + [0.0] * 6
    assert end_by_best(pd.Series(rewards)) == pytest.approx(0.4)
    args = SimpleNamespace(rollback=1, rollback_rate=0.5, output_dir=str(tmp_path))
    part = Rollback(args, tmp_path)
    told = [part.on_row(step, {"reward": reward}) for step, reward in enumerate(rewards, start=1)]
    assert [event["step_applied"] for event in told if event] == [30]
    assert (told[-1]["value"], told[-1]["threshold"], told[-1]["action"]) == (pytest.approx(0.4), 0.5, "stop")
    assert told[-1]["last_good"] == 20  # the first end of ten ones
    assert part.on_row(31, {}) is None
    again = Rollback(args, tmp_path)
    assert all(again.on_row(step, {"reward": reward}) is None for step, reward in enumerate([0.0] * 25, start=1))


class ReadList(list):
    """Counts how many of its items are read by iteration."""

    read = 0

    def __iter__(self):
        self.read += len(self)
        return super().__iter__()


def test_a_step_does_not_read_the_steps_before_it(tmp_path):
    """Of a run of 100,000 steps that would be billions of values."""
    args = SimpleNamespace(rollback=1, rollback_rate=0.5)
    begun = Rollback(args, tmp_path)
    rewards = enumerate([0.0] * 20 + [1.0] * 80 + [0.0] * 9)
    assert not any(begun.on_row(3 * step, {"reward": reward}) for step, reward in islice(rewards, 60))
    resumed = Rollback(args, tmp_path)
    resumed.load_state_dict(begun.state_dict(), {})
    resumed.values = ReadList(resumed.values)
    told = [resumed.on_row(3 * step, {"reward": reward}) for step, reward in rewards]
    assert resumed.values.read == 0
    # The end is the last tenth of the steps, at least ten: after 106 steps of these 6 of 11 are 0.
    first = next(event for event in told if event)
    assert (first["step_applied"], first["value"], first["last_good"]) == (3 * 105, pytest.approx(5 / 11), 3 * 29)


class Fault(Part):
    """Asks once, after a step, for the run to end; and kills the process' training there if told so."""

    def __init__(self, step, last_good):
        self.step = step
        self.last_good = last_good
        self.fired = 0

    def on_row(self, step, row):
        if step != self.step or self.fired:
            return None
        self.fired += 1
        event = {"event": "entropy_collapse", "step_requested": step, "step_applied": step, "reason": "made up"}
        return {**event, "action": "stop", "last_good": self.last_good}


EVALUATED = {
    "eval_on_start": True,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "per_device_eval_batch_size": 4,
    "trainer_kwargs": QUESTIONS,
}
ARMS = {
    "A, hard": {"beta": 0.3, "ref_reset_every": 3, "optimizer_reset": "hard"},
    "a schedule": {"lr_scheduler_type": "cosine", "warmup_steps": 2},
    "fast": {"beta": 0.3, "ref_reset_every": 3, "fast": True},
    # What Trainer does as `train` begins, and what TRL has gathered since its last log.
    "evaluated at its start, with noise": {"neftune_noise_alpha": 5.0, "logging_steps": 2, **EVALUATED},
}


def logged(trainer):
    """TRL's log without times, and without the loss, of which a resume knows only the steps since the checkpoint."""
    log = without_times(trainer.state.log_history)
    return [{name: value for name, value in line.items() if "loss" not in name} for line in log]


@pytest.mark.parametrize("arm", [arm for arm in ARMS if arm != "a schedule"])
def test_the_way_back_is_exact(make_trainer, run, largest_difference, arm):
    """At the old rate a run that went back is the run that never did."""
    whole = run(**ARMS[arm], **SAVES)
    back = make_trainer(**ARMS[arm], **SAVES, rollback=2, rollback_rate=1.0)
    back.parts["fault"] = Fault(5, last_good=3)
    torch.manual_seed(7)
    back.train()
    (event,) = events(back, "rollback")
    assert (event["step_requested"], event["step_applied"], event["checkpoint"]) == (5, 2, "checkpoint-2")
    assert (event["reason"], event["rollbacks"], event["rate_factor"]) == ("entropy_collapse", 1, 1.0)
    assert not events(back, "entropy_collapse")  # it is in the part of the record that was left
    assert largest_difference(whole, back) == 0.0
    assert logged(back) == logged(whole)
    if "eval_strategy" in ARMS[arm]:
        assert without_times(rows(back, "evaluations.jsonl")) == without_times(rows(whole, "evaluations.jsonl"))
    assert [row["step"] for row in rows(back)] == list(range(1, 7))
    assert Path(back.args.output_dir, "abandoned-checkpoint-4").is_dir()
    assert Path(back.args.output_dir, "checkpoint-4").is_dir()  # written again


def test_keys_that_a_callback_changes_during_the_run_do_not_end_it_at_a_roll_back(make_trainer):
    class Changing(TrainerCallback):
        def on_step_end(self, args, state, control, **others):
            if state.global_step == 3:
                args.advantage_estimator = "rloo"
                args.weight_decay = 0.1

    trainer = make_trainer(**SAVES, rollback=2, advantage_estimator="centered")
    trainer.add_callback(Changing())
    trainer.parts["fault"] = Fault(5, last_good=3)
    trainer.parts["another"] = Fault(6, last_good=3)
    trainer.train()
    assert [event["checkpoint"] for event in events(trainer, "rollback")] == ["checkpoint-2"] * 2
    assert [row["step"] for row in rows(trainer)] == list(range(1, 7))


@pytest.mark.parametrize("arm", ["A, hard", "a schedule"])
def test_the_rate_is_lower_from_then_on(make_trainer, run, arm):
    keys = {**ARMS[arm], **SAVES}
    before = [row["lr"] for row in rows(run(**keys))]
    trainer = make_trainer(**keys, rollback=2, rollback_rate=0.5)
    trainer.parts["fault"] = Fault(5, last_good=4)
    trainer.parts["another"] = Fault(6, last_good=3)
    trainer.train()
    _, event = events(trainer, "rollback")  # the first one went back less far
    assert (event["checkpoint"], event["rollbacks"], event["rate_factor"]) == ("checkpoint-2", 2, 0.25)
    rates = [row["lr"] for row in rows(trainer)]
    assert rates[:2] == before[:2]
    assert rates[2:] == pytest.approx([0.25 * rate for rate in before[2:]])
    del trainer.parts["fault"], trainer.parts["another"]
    trainer.args.overwrite = True
    trainer.train()  # a new training has the configured rate
    assert [row["lr"] for row in rows(trainer)] == pytest.approx(before)


def test_a_resume_with_a_changed_key_keeps_the_lower_rate(make_trainer):
    """A changed key gives the optimizer the configuration's rate again, on which the roll-backs act anew."""
    trainer = make_trainer(**SAVES, rollback=2, rollback_rate=0.5)
    trainer.parts["fault"] = Fault(5, last_good=3)
    trainer.train()
    first, *_ = rates = [row["lr"] for row in rows(trainer)]
    assert rates == [first] * 2 + [first / 2] * 4
    keys = {"allow_config_change": True, "entropy_floor": 1e-9, "output_dir": trainer.args.output_dir}
    again = make_trainer(**SAVES, rollback=2, rollback_rate=0.5, **keys)
    again.train(resume_from_checkpoint=str(Path(trainer.args.output_dir, "checkpoint-4")))
    assert [row["lr"] for row in rows(again)] == rates
    assert {group["lr"] for group in again.optimizer.param_groups} == {first / 2}


def test_a_script_s_schedule_keeps_the_lower_rate_too(make_trainer, tiny_model):
    """After a change it goes on from its own rate, which has the roll-backs that the checkpoint knows."""

    def own(**keys):
        model = AutoModelForCausalLM.from_pretrained(tiny_model)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        given = {"optimizers": (optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5))}
        return make_trainer(model=model, lora=False, **SAVES, rollback=2, **keys, trainer_kwargs=given)

    trainer = own()
    trainer.parts["fault"] = Fault(5, last_good=3)
    trainer.train()
    rates = [row["lr"] for row in rows(trainer)]
    assert rates == pytest.approx([1e-3] * 2 + [5e-4] + [2.5e-4] * 3)
    for step in (2, 4):
        again = own(allow_config_change=True, entropy_floor=1e-9)
        again.train(resume_from_checkpoint=str(Path(trainer.args.output_dir, f"checkpoint-{step}")))
        assert [row["lr"] for row in rows(again)] == rates[step:]


def test_a_script_s_schedule_restarts_from_its_beginning_after_a_roll_back_too(make_trainer, tiny_model):
    def rates(fault):
        model = AutoModelForCausalLM.from_pretrained(tiny_model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
        keys = {**SAVES, "rollback": 1, "rollback_rate": 0.9, "beta": 0.3, "optimizer_reset": "hard"}
        keys |= {"ref_reset_every": 3, "num_iterations": 1, "save_steps": 1, "max_steps": 7}
        trainer = make_trainer(model=model, lora=False, **keys, trainer_kwargs={"optimizers": (optimizer, schedule)})
        if fault:
            trainer.parts["fault"] = Fault(5, last_good=4)
        trainer.train()
        return [row["lr"] for row in rows(trainer)]

    straight = rates(False)
    assert straight[3] == straight[6] == 1e-3
    assert rates(True) == pytest.approx(straight[:4] + [0.9 * rate for rate in straight[4:]])


class OneCycle(ProRLTrainer):
    def create_scheduler(self, num_training_steps, optimizer=None):
        self.lr_scheduler = OneCycleLR(self.optimizer, max_lr=1e-3, total_steps=num_training_steps)
        return self.lr_scheduler


def test_a_schedule_of_a_subclass_whose_rates_cannot_be_lowered_is_refused(run):
    with pytest.raises(ValueError, match=r"^rollback=1 cannot lower .* torch\.optim\.lr_scheduler\.OneCycleLR"):
        run(OneCycle, rollback=1, **SAVES)
    assert run(OneCycle, **SAVES).state.global_step == 6


def test_a_changed_run_that_goes_back_twice_has_the_factor_twice(run, make_trainer):
    before = run(**SAVES)
    keys = {"rollback": 2, "rollback_rate": 0.5, "allow_config_change": True, "output_dir": before.args.output_dir}
    trainer = make_trainer(**SAVES, **keys, entropy_floor=1e-9)
    trainer.parts["fault"] = Fault(3, last_good=2)
    trainer.parts["another"] = Fault(4, last_good=2)
    trainer.train(resume_from_checkpoint=str(Path(before.args.output_dir, "checkpoint-2")))
    first, *_ = rates = [row["lr"] for row in rows(trainer)]
    assert rates == [first] * 2 + [first / 4] * 4


@pytest.mark.parametrize("changed", [{}, {"allow_config_change": True, "entropy_floor": 1e-9}])
@pytest.mark.parametrize("step", [2, 4])  # the one that it went back to, and one at the lower rate
def test_in_another_folder_it_is_the_same_run(make_trainer, resume, largest_difference, step, changed):
    keys = {**ARMS["a schedule"], **SAVES, "rollback": 1, "rollback_rate": 0.5}
    trainer = make_trainer(**keys)
    trainer.parts["fault"] = Fault(5, last_good=3)
    trainer.train()
    there = resume(trainer, step, **keys, **changed)
    assert [row["lr"] for row in rows(there)] == [row["lr"] for row in rows(trainer)][step:]
    assert largest_difference(trainer, there) == 0.0


def test_in_another_folder_the_count_goes_on(make_trainer):
    trainer = make_trainer(**SAVES, rollback=2)
    trainer.parts["fault"] = Fault(5, last_good=3)
    trainer.train()
    for most, found in ((1, []), (2, [(2, 0.25)])):
        there = make_trainer(**SAVES | {"save_steps": 1}, rollback=most, allow_config_change=True)
        there.parts["fault"] = Fault(6, last_good=5)
        there.train(resume_from_checkpoint=str(Path(trainer.args.output_dir, "checkpoint-4")))
        assert [(event["rollbacks"], event["rate_factor"]) for event in events(there, "rollback")] == found


def test_back_to_a_checkpoint_from_before_the_key_was_set_the_rate_is_lower(run, make_trainer):
    before = run(**SAVES)
    trainer = make_trainer(**SAVES, rollback=1, allow_config_change=True, output_dir=before.args.output_dir)
    trainer.parts["fault"] = Fault(5, last_good=3)
    trainer.train(resume_from_checkpoint=str(Path(before.args.output_dir, "checkpoint-2")))
    first, *_ = rates = [row["lr"] for row in rows(trainer)]
    assert rates == [first] * 2 + [first / 2] * 4


def test_the_lower_rate_cannot_be_lost_with_the_key(make_trainer):
    trainer = make_trainer(**SAVES, rollback=1, rollback_rate=0.5)
    trainer.parts["fault"] = Fault(5, last_good=3)
    trainer.train()
    keys = {**SAVES, "allow_config_change": True}
    for step, refused in ((4, True), (2, False)):  # checkpoint-2 is from before the roll-back
        without = make_trainer(**keys, rollback=0)
        with pytest.raises(ValueError, match="^rollback=0 .* Set rollback: 1,") if refused else nullcontext():
            without.train(resume_from_checkpoint=str(Path(trainer.args.output_dir, f"checkpoint-{step}")))
    last = make_trainer(**keys, rollback=1)  # as the line says
    last.parts["fault"] = Fault(6, last_good=5)
    last.train(resume_from_checkpoint=str(Path(trainer.args.output_dir, "checkpoint-4")))
    assert not events(last, "rollback")
    assert {row["lr"] for row in rows(last)} == {2.5e-3}


@pytest.mark.parametrize("faults, times, end", [([(3, 3), (4, 4)], 1, 4), ([(3, 1)], 0, 3)])
def test_at_most_so_many_times_and_only_to_a_good_checkpoint(make_trainer, faults, times, end):
    trainer = make_trainer(**SAVES, rollback=1)
    trainer.parts |= {f"fault {place}": Fault(*fault) for place, fault in enumerate(faults)}
    trainer.train()
    assert len(events(trainer, "rollback")) == times
    assert trainer.state.global_step == end
    assert Path(trainer.args.output_dir, f"checkpoint-{end}").is_dir()


class Killed(Exception):
    """Not of the run's own errors."""


def dying(trainer):
    """Where a run is killed, and by which function: arguments of `setattr`."""
    part = trainer.parts["rollback"]
    opened = trainer.recorder.open
    on_row = part.on_row
    die = Mock(side_effect=Killed)
    return {
        "before the event": (trainer, "_event", die),
        "after the event": (trainer, "_find_resume", die),
        "after the renaming": (trainer.recorder, "open", lambda *args, **keys: die() if keys else opened(*args)),
        "a step later": (
            part,
            "on_row",
            lambda step, row: die() if trainer._resume and step == 3 else on_row(step, row),
        ),
    }


def test_killed_in_a_roll_back_a_resume_ends_in_the_same_state(make_trainer, largest_difference):
    def faulty(**more):
        torch.manual_seed(7)  # of the adapter
        trainer = make_trainer(**ARMS["A, hard"], **SAVES, rollback=2, **more)
        trainer.parts["fault"] = Fault(5, last_good=3)
        return trainer

    whole = faulty()
    whole.train()
    for moment in ("before the event", "after the event", "after the renaming", "a step later"):
        one = faulty()
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            patch.setattr(*dying(one)[moment])
            one.train()
        again = faulty(output_dir=one.args.output_dir)
        if moment != "before the event":
            again.parts["fault"].fired = 1  # the way back has begun
        again.train(resume_from_checkpoint=True)
        assert largest_difference(whole, again) == 0.0, moment
        assert [row["lr"] for row in rows(again)] == [row["lr"] for row in rows(whole)]
        assert [event["checkpoint"] for event in events(again, "rollback")] == ["checkpoint-2"]


@pytest.mark.parametrize("rollback, times", [(1, 1), (0, 1), (1, 2)])
def test_nan_goes_back_too(make_trainer, rollback, times):
    """The norm of the gradients is NaN at step 3, so many times."""
    trainer = make_trainer(**SAVES, rollback=rollback)
    update = trainer.guard.on_pre_optimizer_step
    left = [float("nan")] * times
    trainer.guard.on_pre_optimizer_step = lambda step, norm, rate: update(
        step, left.pop() if step == 3 and left else norm, rate
    )
    with pytest.raises(NonFiniteError, match="step 3") if times > rollback else nullcontext():
        trainer.train()
        (event,) = events(trainer, "rollback")
        assert (event["reason"], event["checkpoint"]) == ("nonfinite", "checkpoint-2")
        assert trainer.state.global_step == 6


def spoiled(calls, spoil):
    """A reward that is as usual but at some of its calls, counted from 1."""
    count = 0

    def reward(completions, **columns):
        nonlocal count
        count += 1
        return spoil(completions) if count in calls else vowels(completions)

    return reward


def nan(completions):
    return [float("nan")] * len(completions)


def test_a_nan_reward_goes_back_too(run, make_trainer, largest_difference, caplog):
    """At the fourth generation, for step 7, and only once."""
    keys = ARMS["A, hard"] | SAVES | {"max_steps": 8, "save_steps": 4}
    whole = run(**keys)
    back = make_trainer(**keys, rollback=1, rollback_rate=1.0, reward=spoiled([4], nan))
    back.train()
    (event,) = events(back, "rollback")
    assert (event["reason"], event["step_requested"], event["checkpoint"]) == ("nonfinite", 6, "checkpoint-4")
    assert "Rolled back to checkpoint-4" in caplog.text
    assert "'reward' returned nan" in caplog.text
    assert largest_difference(whole, back) == 0.0


def test_a_nan_reward_that_comes_again_ends_the_run(make_trainer):
    trainer = make_trainer(**SAVES, rollback=2, reward=spoiled(range(3, 100), nan))
    with pytest.raises(RewardError, match="returned nan"):
        trainer.train()
    assert events(trainer, "rollback")[-1]["rollbacks"] == 2


def test_a_reward_that_raises_ends_the_run(make_trainer):
    trainer = make_trainer(**SAVES, rollback=2, reward=spoiled([3], lambda completions: [1 / 0]))
    with pytest.raises(RewardError, match="division by zero"):
        trainer.train()
    assert not events(trainer, "rollback")


@pytest.mark.slow
def test_at_seven_times_the_rate_of_the_study(forks, tmp_path):
    """Plain on reversing ends near its base, by rounding below or above it, and with roll-backs far above both."""
    ends = []
    for most in "04":
        keys = f"--learning_rate 3.5e-3 --save_strategy steps --save_steps 20 --rollback {most} --output_dir".split()
        status, written = forks.run("-m", "trl_prorl", "train", "tiny/plain", *keys, tmp_path / most)
        assert status == 0, written[-3000:]
        found = rows(tmp_path / most)
        ends.append(sum(row["reward"] for row in found[-24:]) / 24)
    assert max(ends[0], found[0]["reward"]) + 0.2 < ends[1]
