"""The KL on other tasks: its texts, its value by hand, and a trainer that is plain's but for it."""

import json
import math
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoTokenizer

from study.matrix import MODEL, read_matrix
from study.replayed_kl import (
    QUESTIONS,
    ReplayedKLTrainer,
    Text,
    draw_texts,
    mean_kl,
    pad_texts,
    texts_of_batch,
)
from study.runner import SETTINGS
from trl_prorl.launch.command_line import check_arguments, parse
from trl_prorl.tasks.registry import get_task
from trl_prorl.train import find_model, run
from trl_prorl.trainer import ProRLTrainer


ROOT = Path(__file__).parent.parent.parent
SMALL = {
    "max_steps": 4,
    "train_rows": 8,
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "save_strategy": "steps",
    "save_steps": 2,
}
BASE = ROOT / "study" / "bases" / "three_tasks-1"


@pytest.fixture
def train(tmp_path, texts):
    """A function that trains an arm into a folder of a name, and returns it."""
    recipes = {run.key.arm: run.product_recipe for run in read_matrix(ROOT).selected(["forget2"]).runs}

    def train(arm, name, *options, **keys):
        folder = tmp_path / name
        path = tmp_path / f"{name}.yaml"
        recipe = {**recipes[arm], **SETTINGS, **SMALL, MODEL: str(BASE), "output_dir": str(folder), **keys}
        path.write_text(yaml.safe_dump(recipe))
        made = {}
        if arm == "replayed_kl":
            made = {"trainer_class": partial(ReplayedKLTrainer, texts=texts)}
        run(*parse(check_arguments(None, ["--config", str(path), *options])), **made)
        return folder

    return train


@pytest.fixture(scope="module")
def texts():
    tokenizer = AutoTokenizer.from_pretrained(BASE, padding_side="left")
    return draw_texts(find_model(str(BASE)), tokenizer, 71, 48)


def writing_down(compute_loss, written):
    """A method that computes the loss and appends its value."""

    def compute(self, model, inputs):
        loss = compute_loss(self, model, inputs)
        written.append(loss.item())
        return loss

    return compute


def rows_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_texts_are_answers_to_the_two_tasks_in_turn(texts):
    """As many are right as of the base's held-out answers: the questions are those tasks', the texts the base's."""
    points = pd.read_csv(ROOT / "study" / "tables" / "points.csv.gz").set_index(["family", "arm", "base_seed", "step"])
    of_base = points.loc[("forget", "plain", 1, 0)].groupby("task")["gold"].first()
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    assert len(texts) == 2 * QUESTIONS
    for first, name in enumerate(("sorting", "sums")):
        task = get_task(name, level=3)
        rows = list(task.rows("train", QUESTIONS))
        of_task = texts[first::2]
        written = [tokenizer.decode(text.completion, skip_special_tokens=True) for text in of_task]
        right = sum(task.verify_many(written, rows))
        assert right / QUESTIONS == pytest.approx(of_base[f"{name}@3"], abs=0.04)
        asked = tokenizer.decode(of_task[0].prompt)
        assert rows[0]["prompt"][0]["content"] in asked
    assert draw_texts(find_model(str(BASE)), tokenizer, 71, 48)[:4] == texts[:4]
    assert draw_texts(find_model(str(BASE)), tokenizer, 72, 48)[:40] != texts[:40]


def test_a_batch_has_eight_and_after_the_last_come_the_first():
    texts = [Text([place], [place]) for place in range(20)]
    assert [text.prompt[0] for text in texts_of_batch(texts, 0)] == list(range(8))
    assert [text.prompt[0] for text in texts_of_batch(texts, 2)] == [16, 17, 18, 19, 0, 1, 2, 3]


def test_the_mean_kl_by_hand():
    """Two places count: (.5, .5) from (.25, .75) is .5 ln 2 + .5 ln (2/3); the other's distributions are equal."""
    logits = torch.tensor([[[0.0, 0.0], [5.0, -5.0], [1.0, 2.0]]])
    base_logits = torch.tensor([[[0.0, math.log(3)], [-5.0, 5.0], [1.0, 2.0]]])
    counts = torch.tensor([[True, False, True]])
    expected = (0.5 * math.log(2) + 0.5 * math.log(2 / 3)) / 2
    assert mean_kl(logits, base_logits, counts).item() == pytest.approx(expected)


def test_padding_is_attended_to_by_nothing():
    padded = pad_texts([Text([5, 6], [7]), Text([5], [8, 9, 1])], torch.device("cpu"))
    assert padded.ids.tolist() == [[5, 6, 7, 0], [5, 8, 9, 1]]
    assert padded.attention_mask.tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert padded.is_completion.tolist() == [[False, False, True, False], [False, True, True, True]]


def test_it_begins_as_plain_and_adds_the_kl_to_the_loss(train, texts, monkeypatch):
    """The value of each step is that of single texts without padding; the first batch's rollouts are plain's."""
    by_hand = []
    original = ReplayedKLTrainer.replayed_kl

    def replayed_kl(self, of_batch):
        assert list(of_batch) == texts_of_batch(texts, self.state.global_step // 2)
        policy = self.accelerator.unwrap_model(self.model)
        values = []
        with torch.no_grad():
            for text in of_batch:
                ids = torch.tensor([[*text.prompt, *text.completion]])
                logps = policy(ids).logits.log_softmax(-1)[0, len(text.prompt) - 1 : -1]
                with policy.disable_adapter():
                    base_logps = policy(ids).logits.log_softmax(-1)[0, len(text.prompt) - 1 : -1]
                values += (logps.exp() * (logps - base_logps)).sum(-1).tolist()
        by_hand.append(sum(values) / len(values))
        kl = original(self, of_batch)
        assert kl.item() == pytest.approx(by_hand[-1], abs=1e-6)
        return kl

    monkeypatch.setattr(ReplayedKLTrainer, "replayed_kl", replayed_kl)
    losses = {ProRLTrainer: [], ReplayedKLTrainer: []}
    for trainer_class, written in losses.items():
        monkeypatch.setattr(trainer_class, "_compute_loss", writing_down(trainer_class._compute_loss, written))
    held = rows_of(train("replayed_kl", "held", learning_rate=0.01))
    without = losses[ProRLTrainer].copy()
    added = [whole - part for whole, part in zip(losses[ReplayedKLTrainer], without, strict=True)]
    assert added == pytest.approx(by_hand, abs=1e-6)
    assert by_hand[0] == pytest.approx(0, abs=1e-6)
    assert by_hand[1] > 1e-4
    plain = rows_of(train("plain", "plain", learning_rate=0.01))
    assert [row["reward"] for row in held[:2]] == [row["reward"] for row in plain[:2]]
    assert held[0]["completion_length"] == plain[0]["completion_length"]
    # The first update is plain's, because the KL's gradient is 0 at the base; the second one is not.
    assert without[:2] == pytest.approx(losses[ProRLTrainer][4:6], abs=1e-6)
    assert without[3] != pytest.approx(losses[ProRLTrainer][7], abs=1e-6)


def test_a_resumed_run_ends_with_the_same_weights(train, texts):
    whole = train("replayed_kl", "whole")
    cut = train("replayed_kl", "cut", max_steps=2)
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        (cut / name).unlink()
    train("replayed_kl", "cut", "--resume_from_checkpoint", "True")
    of_whole = load_file(whole / "adapter_model.safetensors")
    of_cut = load_file(cut / "adapter_model.safetensors")
    assert of_whole.keys() == of_cut.keys()
    assert all(torch.equal(of_whole[name], of_cut[name]) for name in of_whole)


def test_several_micro_batches_are_refused(train, capsys):
    with pytest.raises(SystemExit):
        train("replayed_kl", "several", gradient_accumulation_steps=2)
    assert "gradient_accumulation_steps=2: study.replayed_kl needs 1" in capsys.readouterr().err
