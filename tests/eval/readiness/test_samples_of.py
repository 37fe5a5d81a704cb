"""Samples that a preflight draws: the rows, the prompts and the counts of a step of training."""

import pytest
from datasets import Dataset
from tool_run import Adds, rewarded, speaks
from transformers import AutoTokenizer
from trl import GRPOTrainer

from trl_prorl import ProRLTrainer, preflight
from trl_prorl.eval.readiness.samples_of import sample_rows


PROMPTS = [[{"role": "user", "content": f"say {number}"}] for number in range(16)]


class Deck(Adds):
    """An environment that takes a card from its row."""

    taken = []

    def reset(self, cards, **row):
        self.taken.append(cards.pop())
        return self.taken[-1]


class Other(Deck):
    """Another environment of the same tools."""


@pytest.fixture
def make(make_trainer, tools_model):
    def make(cls, factory, **columns):
        given = {
            "environment_factory": factory,
            "processing_class": AutoTokenizer.from_pretrained(tools_model),
            "train_dataset": Dataset.from_dict({"prompt": PROMPTS, "cards": [["a", "b"]] * 16, **columns}),
        }
        keys = {"max_steps": 1, "max_completion_length": 400}
        return speaks(make_trainer(cls, model=tools_model, reward=rewarded, trainer_kwargs=given, **keys))

    return make


@pytest.mark.parametrize("cls", [GRPOTrainer, ProRLTrainer])
@pytest.mark.parametrize("several", [False, True])
def test_environments_are_asked_as_in_training(make, cls, several):
    columns = {"environment": ["a", "b"] * 8} if several else {}
    trainer = make(cls, {"a": Deck, "b": Other} if several else Deck, **columns)
    Deck.taken.clear()
    found = {finding.what for finding in preflight(trainer, prompts=2)}
    assert {"longest prompt, with a completion", "expected wall time"} <= found
    assert Deck.taken == ["b"] * 16  # of 2 prompts, and of a step: the last of each row's own cards


def test_lengths_are_of_the_model_s_own_tokens(make):
    trainer = make(ProRLTrainer, Deck)
    said = []
    speak = trainer._generate_single_turn

    def count(*args, **keys):
        drawn = speak(*args, **keys)
        said.extend(map(len, drawn[0]))
        return drawn

    trainer._generate_single_turn = count
    sampled = sample_rows(trainer, [trainer.train_dataset[0], trainer.train_dataset[1]])
    assert sum(sampled.lengths) == sum(said)


@pytest.mark.parametrize("cls", [GRPOTrainer, ProRLTrainer])
def test_a_verifier_gets_tokens_and_environments_as_in_training(make, monkeypatch, cls):
    seen = []

    def verifier(completion_ids, environments, **columns):
        assert all(type(environment) is Deck for environment in environments)
        seen.extend(completion_ids)
        return [len(ids) % 2 == 0 for ids in completion_ids]

    monkeypatch.setattr(rewarded, "batch_verifier", verifier, raising=False)
    trainer = make(cls, Deck)
    sampled = sample_rows(trainer, [trainer.train_dataset[0]])
    assert sampled.correct == [len(ids) % 2 == 0 for ids in seen[-len(sampled.correct) :]]
    assert len(set(sampled.correct)) == 2


def test_removed_columns_are_missing_as_in_training(make_trainer):
    def reward(completions, answer, **columns):
        return [1.0] * len(completions)

    trainer = make_trainer(reward=reward, columns={"answer": ["5"] * 16}, remove_unused_columns=True)
    findings = {finding.what: finding for finding in preflight(trainer, prompts=2)}
    assert findings["first samples and steps"].number == "the run stops"
    assert "accuracy of the starting model" not in findings  # nothing was rewarded with the answer
    assert "'answer'" in findings["first samples and steps"].change
