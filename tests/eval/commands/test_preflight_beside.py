"""The preflight of a trainer that goes on to train: TRL's own, a subclass, and ours."""

import json
import random
from collections import defaultdict

import numpy as np
import pytest
import torch
from run_record import read_rows, without_times
from tiny_run import QUESTIONS, vowels
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import GRPOTrainer

from trl_prorl import ProRLTrainer, RunRecorder
from trl_prorl.eval.preflight import preflight
from trl_prorl.eval.readiness.signal import REWARDS_WRONG


class Counting(GRPOTrainer):
    """A subclass that keeps something of its own, and draws random numbers for it."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen = defaultdict(list)

    def _calculate_rewards(self, inputs, *args):
        rewards = super()._calculate_rewards(inputs, *args)
        self.seen["rewards"].append(rewards + random.random() + np.random.rand())
        return rewards


class Witness(TrainerCallback):
    """A user's callback."""

    def __init__(self):
        self.steps = []

    def on_step_end(self, args, state, control, **kwargs):
        self.steps.append(state.global_step)


TIMES = ("time", "runtime", "per_second")


def numbers(trainer):
    """All that a training logs, but for times."""
    return [{k: v for k, v in row.items() if not any(t in k for t in TIMES)} for row in trainer.state.log_history]


PLAIN = {"beta": 0.1, "max_steps": 4, "save_strategy": "steps", "save_steps": 2, "log_completions": True}
EVALUATED = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 4, "eval_on_start": True}
FULL = {"lora": False, "num_iterations": 1, "optim": "adamw_torch", "lr_scheduler_type": "linear", "warmup_steps": 2}


@pytest.mark.parametrize(
    "keys, cls",
    [
        ({}, Counting),
        (FULL, GRPOTrainer),
        (EVALUATED, Counting),
        ({"gradient_accumulation_steps": 2, "steps_per_generation": 4}, GRPOTrainer),
    ],
)
def test_a_training_after_it_is_the_training_without_it(cls, keys, make_trainer, weights, tmp_path):
    runs = []
    for name in ("without", "after"):
        witness = Witness()
        given = {"callbacks": [witness, RunRecorder()], **QUESTIONS}
        trainer = make_trainer(cls, **PLAIN | keys, output_dir=str(tmp_path / name), trainer_kwargs=given)
        if name == "after":
            before = sorted((tmp_path / name).rglob("*"))
            preflight(trainer, prompts=4)
            assert sorted((tmp_path / name).rglob("*")) == before and witness.steps == []
            assert trainer.optimizer is None and trainer.state.global_step == 0
        trainer.train()
        assert witness.steps == [1, 2, 3, 4]
        seen = [rewards.tolist() for rewards in getattr(trainer, "seen", {"rewards": []})["rewards"]]
        rows = [without_times(row) for row in read_rows(tmp_path / name)]
        runs.append((weights(trainer), numbers(trainer), rows, seen, torch.get_rng_state().tolist()))
    (first, *others), (second, *again) = runs
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert json.dumps(others) == json.dumps(again)


def test_an_optimizer_of_the_user_s_is_put_back(make_trainer, weights, tiny_model):
    runs = []
    for tries in (False, True):
        model = AutoModelForCausalLM.from_pretrained(tiny_model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=4)
        given = {"optimizers": (optimizer, schedule)}
        trainer = make_trainer(GRPOTrainer, lora=False, model=model, trainer_kwargs=given)
        if tries:
            (rate,) = [finding for finding in preflight(trainer, prompts=4) if finding.what == "learning rate"]
            assert rate.values == {"lr": 1e-3}  # not the key's
            assert optimizer.state_dict()["state"] == {} and schedule.last_epoch == 0
        trainer.train()
        runs.append((weights(trainer), numbers(trainer)))
    (first, log), (second, again) = runs
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert log == again


@pytest.mark.parametrize("cls", [GRPOTrainer, ProRLTrainer])
def test_a_trainer_that_has_trained_is_as_it_was(cls, make_trainer, weights):
    trainer = make_trainer(cls, max_steps=2, lr_scheduler_type="linear")
    trainer.train()

    def state():
        moments = json.dumps(trainer.optimizer.state_dict()["state"], default=torch.Tensor.tolist)
        return moments, trainer.lr_scheduler.state_dict(), trainer.state.global_step, torch.get_rng_state().tolist()

    trained = {name: param.clone() for name, param in weights(trainer).items()}
    before = state()
    preflight(trainer, prompts=4)
    assert state() == before
    assert all(torch.equal(param, trained[name]) for name, param in weights(trainer).items())


def test_rows_of_a_transform_that_draws_are_those_without_it(make_trainer, weights):
    """The first row is read before the first sample."""

    def draw(rows):
        return rows | {"prompt": [random.choice(["say 1", "say 2", "say 3"]) for _ in rows["prompt"]]}

    runs = []
    for tries in (False, True):
        trainer = make_trainer(GRPOTrainer, max_steps=2)
        trainer.train_dataset.set_transform(draw)
        random.seed(0)
        if tries:
            preflight(trainer, prompts=4, verify=lambda completion, row: True)
        trainer.train()
        runs.append(weights(trainer))
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])


OURS = {
    "reset": {"beta": 0.1, "ref_reset_every": 1, "optimizer_reset": "hard", "fast": True},
    "anchors": {"beta_old": 0.1, "beta_base": 0.05, "dynamic_sampling_rounds": 1},
    "elastic": {"elastic_reset_every": 2, "lora": False},
    "pool": {"prompt_pool": True, "num_iterations": 1},
}


@pytest.mark.parametrize("keys", OURS.values(), ids=OURS)
def test_ours_trains_after_it_as_without_it(keys, make_trainer, weights, tmp_path):
    runs = []
    for name in ("without", "after"):
        trainer = make_trainer(ProRLTrainer, max_steps=4, output_dir=str(tmp_path / name), **keys)
        if name == "after":
            preflight(trainer, prompts=4)
            assert not (tmp_path / name / "metrics.jsonl").exists()
        trainer.train()
        rows = [without_times(row) for row in read_rows(tmp_path / name)]
        events = [without_times(row) for row in read_rows(tmp_path / name, "events.jsonl")]
        runs.append((weights(trainer), rows, events))
    (first, *others), (second, *again) = runs
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert json.dumps(others) == json.dumps(again)


def test_an_optimizer_of_a_script_has_no_hook_more_after_it(make_trainer, tiny_model):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    keys = {"beta": 0.1, "ref_reset_every": 1, "optimizer_reset": "hard", "optimizer_reset_rewarmup_steps": 4}
    given = {"model": model, "trainer_kwargs": {"optimizers": (optimizer, None)}}
    trainer = make_trainer(ProRLTrainer, lora=False, **given, **keys)
    hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    before = [len(each) for each in hooks]
    preflight(trainer, prompts=4)
    assert [len(each) for each in hooks] == before


def levels(findings):
    return {finding.what: finding.level for finding in findings if finding.level != "fine"}


def constant(completions, **columns):
    return [0.5] * len(completions)


def test_causes_are_found_in_trl_s_trainer(make_trainer):
    found = {finding.what: finding for finding in preflight(make_trainer(GRPOTrainer, learning_rate=1e-6), prompts=4)}
    assert found["learning rate"].level == "look"
    assert found["truncated completions"].level == "look"
    assert found["expected wall time"].values["seconds"] > 0
    same = levels(preflight(make_trainer(GRPOTrainer, reward=constant), prompts=4))
    assert same["groups that give no gradient"] == "stop"
    long = make_trainer(GRPOTrainer, max_completion_length=40_000)
    long.generation_config.max_new_tokens = 6
    assert levels(preflight(long, prompts=4))["longest prompt, with a completion"] == "look"


def test_two_forwards_that_differ_are_said_where_they_are_compared(make_trainer, tiny_model):
    for beta, is_said in ((0.1, True), (0.0, False)):
        model = AutoModelForCausalLM.from_pretrained(tiny_model, attention_dropout=0.5)
        trainer = make_trainer(GRPOTrainer, model=model, lora=False, beta=beta, num_iterations=1)
        assert ("two forwards of a row" in levels(preflight(trainer, prompts=4))) is is_said


def test_a_reward_that_reads_messages_as_text_is_said(make_trainer):
    readers = {
        "stop": lambda completion: float("e" in completion),
        None: lambda completion: float("e" in completion[-1]["content"]),
    }
    for level, read in readers.items():
        reward = lambda completions, read=read, **columns: [read(completion) for completion in completions]  # noqa: E731
        trainer = make_trainer(GRPOTrainer, reward=reward, temperature=1.5)
        assert levels(preflight(trainer, prompts=8)).get("rewards of messages") == level


def test_a_verifier_of_one_completion_finds_what_the_reward_pays_wrongly(make_trainer):
    rows = []

    def is_correct(completion, row):
        rows.append(row)
        return len(completion) % 2 == 0  # unlike the reward, which counts vowels

    columns = {"answer": [str(place) for place in range(16)]}
    for cls in (GRPOTrainer, ProRLTrainer):
        found = levels(preflight(make_trainer(cls, columns=columns, reward=vowels), prompts=8, verify=is_correct))
        assert found[REWARDS_WRONG] == "look"
        assert "separate verifier" not in found
    assert all(set(row) >= {"prompt", "answer"} for row in rows)
    with pytest.raises(ValueError, match="verify"):
        preflight(make_trainer(GRPOTrainer), verify=lambda completion: True)
