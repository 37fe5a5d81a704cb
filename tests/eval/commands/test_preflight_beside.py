"""The preflight of a trainer that goes on to train: TRL's own, a subclass, and ours."""

import json
import random

import numpy as np
import pytest
import torch
from run_record import hash_files, read_rows, without_times
from slow import slow_but
from tiny_run import QUESTIONS, constant, vowels
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import GRPOTrainer

from trl_prorl import ProRLTrainer, RunRecorder
from trl_prorl.eval.preflight import preflight
from trl_prorl.eval.readiness.signal import REWARDS_WRONG


class Counting(GRPOTrainer):
    """A subclass that keeps something of its own, and draws random numbers for it."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen = []
        self.generators = [np.random.default_rng(0), np.random.RandomState(0)]
        self.levels = np.frombuffer(bytes(8))  # read-only

    def _calculate_rewards(self, inputs, *args):
        rewards = super()._calculate_rewards(inputs, *args)
        own = [generator.uniform for generator in self.generators]
        self.seen.append(rewards + sum(draw() for draw in (random.random, np.random.rand, *own)))
        return rewards


class Witness(TrainerCallback):
    """A user's callback."""

    def __init__(self):
        self.steps = []

    def on_step_end(self, args, state, control, **kwargs):
        self.steps.append(state.global_step)


def numbers(trainer):
    """All that a training logs, but for times."""
    return without_times(trainer.state.log_history)


def look(trainer):
    """A preflight that is as short as it can be."""
    return {finding.what: finding for finding in preflight(trainer, prompts=4)}


@pytest.fixture
def assert_trains_alike(weights):
    """
    A function: trains a trainer as `build` makes it, and another one after a preflight; weights, and what `record`
    returns, are the same.
    """

    def compare(build, check=look, record=numbers):
        runs = []
        for prepare in (None, check):
            trainer = build()
            if prepare is not None:
                prepare(trainer)
            trainer.train()
            runs.append((weights(trainer), json.dumps(record(trainer))))
        (first, log), (second, log_after) = runs
        assert all(torch.equal(first[key], second[key]) for key in first)
        assert log == log_after

    return compare


PLAIN = {"beta": 0.1, "max_steps": 4, "save_strategy": "steps", "save_steps": 2, "log_completions": True}
EVALUATED = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 4, "eval_on_start": True}
FULL = {"lora": False, "num_iterations": 1, "optim": "adamw_torch", "lr_scheduler_type": "linear", "warmup_steps": 2}
TRAININGS = {
    "subclass": (Counting, PLAIN),
    "full": (GRPOTrainer, PLAIN | FULL),
    "evaluated": (Counting, PLAIN | EVALUATED),
    "accumulated": (GRPOTrainer, PLAIN | {"gradient_accumulation_steps": 2, "steps_per_generation": 4}),
    "reset": (ProRLTrainer, {"beta": 0.1, "ref_reset_every": 1, "optimizer_reset": "hard", "fast": True}),
    "anchors": (ProRLTrainer, {"beta_old": 0.1, "beta_base": 0.05, "dynamic_sampling_rounds": 1}),
    "elastic": (ProRLTrainer, {"elastic_reset_every": 2, "lora": False}),
    "pool": (ProRLTrainer, {"prompt_pool": True, "num_iterations": 1}),
}


@pytest.mark.parametrize("case", slow_but(TRAININGS, "subclass", "full", "evaluated", "reset", "pool"))
def test_a_training_after_it_is_the_training_without_it(case, make_trainer, assert_trains_alike, tmp_path):
    cls, keys = TRAININGS[case]
    folders = iter([tmp_path / "without", tmp_path / "after"])
    witness = Witness()

    def build():
        witness.steps.clear()
        callbacks = [witness] if cls is ProRLTrainer else [witness, RunRecorder()]
        given = {"callbacks": callbacks, **QUESTIONS}
        return make_trainer(cls, output_dir=str(next(folders)), trainer_kwargs=given, **keys)

    def check(trainer):
        before = hash_files(tmp_path / "after")
        look(trainer)
        assert hash_files(tmp_path / "after") == before and witness.steps == []
        assert trainer.optimizer is None and trainer.state.global_step == 0

    def record(trainer):
        assert witness.steps == [1, 2, 3, 4]
        files = [without_times(read_rows(trainer, file)) for file in ("metrics.jsonl", "events.jsonl")]
        drawn = [rewards.tolist() for rewards in getattr(trainer, "seen", [])]
        return numbers(trainer), files, drawn, torch.get_rng_state().tolist()

    assert_trains_alike(build, check, record)


class Lookahead(torch.optim.Optimizer):
    """A wrapper with weights of its own, which, as timm's, does without the attributes of `Optimizer.__init__`."""

    def __init__(self, inner):
        self.inner = inner
        self.defaults = inner.defaults
        self.param_groups = inner.param_groups
        self.state = inner.state
        self.slow = {}

    def step(self, closure=None):
        self.inner.step()
        for param in self.param_groups[0]["params"]:
            slow = self.slow.setdefault(param, torch.zeros_like(param.data))
            param.data.copy_(slow.lerp_(param.data, 0.9))

    def state_dict(self):
        return self.inner.state_dict()

    def load_state_dict(self, state):
        self.inner.load_state_dict(state)


@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, Lookahead], ids=["plain", "wrapped"])
def test_an_optimizer_of_the_user_s_is_put_back(wrap, make_trainer, assert_trains_alike, tiny_model):
    def build():
        model = AutoModelForCausalLM.from_pretrained(tiny_model)
        optimizer = wrap(torch.optim.AdamW(model.parameters(), lr=1e-3))
        given = {"optimizers": (optimizer, torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=4))}
        return make_trainer(GRPOTrainer, lora=False, model=model, trainer_kwargs=given)

    def check(trainer):
        assert look(trainer)["learning rate"].values == {"lr": 1e-3}  # not the key's
        assert trainer.optimizer.state_dict()["state"] == {} and trainer.lr_scheduler.last_epoch == 0

    assert_trains_alike(build, check)


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


def test_rows_of_a_transform_that_draws_are_those_without_it(make_trainer, assert_trains_alike):
    """The first row is read before the first sample."""

    def draw(rows):
        return rows | {"prompt": [random.choice(["say 1", "say 2", "say 3"]) for _ in rows["prompt"]]}

    def build():
        trainer = make_trainer(GRPOTrainer, max_steps=2)
        trainer.train_dataset.set_transform(draw)
        random.seed(0)
        return trainer

    assert_trains_alike(build, lambda trainer: preflight(trainer, prompts=4, verify=lambda completion, row: True))


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


def test_causes_are_found_in_trl_s_trainer(make_trainer):
    findings = look(make_trainer(GRPOTrainer, learning_rate=1e-6))
    assert findings["learning rate"].level == findings["truncated completions"].level == "look"
    assert findings["expected wall time"].values["seconds"] > 0
    same = look(make_trainer(GRPOTrainer, reward=constant(0.5)))
    assert same["groups that give no gradient"].level == "stop"
    long = make_trainer(GRPOTrainer, max_completion_length=40_000)
    long.generation_config.max_new_tokens = 6
    assert look(long)["longest prompt, with a completion"].level == "look"


def test_two_forwards_that_differ_are_said_where_they_are_compared(make_trainer, tiny_model):
    for beta, is_said in ((0.1, True), (0.0, False)):
        model = AutoModelForCausalLM.from_pretrained(tiny_model, attention_dropout=0.5)
        trainer = make_trainer(GRPOTrainer, model=model, lora=False, beta=beta, num_iterations=1)
        assert ("two forwards of a row" in look(trainer)) is is_said


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
        trainer = make_trainer(cls, columns=columns, reward=vowels)
        suggested = levels(preflight(trainer, prompts=8, verify=is_correct))
        assert suggested[REWARDS_WRONG] == "look"
        assert "separate verifier" not in suggested
    assert all(set(row) >= {"prompt", "answer"} for row in rows)
    with pytest.raises(ValueError, match="verify"):
        preflight(make_trainer(GRPOTrainer), verify=lambda completion: True)
