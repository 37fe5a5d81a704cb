"""The embedded model's parts; the whole of it is made by `make demo`."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from tasks import get_task
from trl_prorl.embedded import (
    EmbeddedSettings,
    byte_tokenizer,
    demonstrations,
    embedded_model,
    new_model,
    wrong_answer,
)


TOKENIZER = byte_tokenizer()


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(blacklist_categories=["Cs"]), max_size=40))
def test_the_tokenizer_covers_any_text(text):
    assert TOKENIZER.decode(TOKENIZER(text).input_ids) == text
    assert len(TOKENIZER) == 256 + 5


def test_the_chat_template_marks_turns_and_ends_an_answer():
    chat = [{"role": "user", "content": "reverse 12"}, {"role": "assistant", "content": "21"}]
    text = TOKENIZER.apply_chat_template(chat, tokenize=False)
    prompt = TOKENIZER.apply_chat_template(chat[:1], tokenize=False, add_generation_prompt=True)
    assert text == "<|user|>reverse 12<|assistant|>21<|end|>" and text.startswith(prompt)


def test_demonstrations_have_the_wrong_share_and_come_from_the_train_split():
    config = EmbeddedSettings(rows=800)
    rows = demonstrations(config)
    train = get_task(config.task, level=config.level).rows("train", config.rows, seed=config.seed)
    assert [row["prompt"] for row in rows] == list(train["prompt"])
    wrong = sum(row["completion"][0]["content"] != answer for row, answer in zip(rows, train["answer"], strict=True))
    assert wrong / len(rows) == pytest.approx(config.wrong_share, abs=0.06)


def test_wrong_rules_keep_the_length():
    rng = random.Random(0)
    answers = {wrong_answer("54321", rng) for _ in range(200)}
    assert {"12345", "23451"} <= answers and all(len(answer) == 5 and answer.isdigit() for answer in answers)


def test_about_a_million_parameters():
    assert 0.5e6 < sum(p.numel() for p in new_model(EmbeddedSettings(), TOKENIZER).parameters()) < 1.3e6


def test_made_once_and_the_same_every_time(tmp_path):
    config = EmbeddedSettings(hidden_size=16, layers=1, heads=2, intermediate_size=16, rows=64, steps=3, batch_size=8)
    paths = [embedded_model(config, tmp_path / name) for name in ("a", "a", "b")]
    assert paths[0] == paths[1] != paths[2]
    first, second = (load_file(f"{path}/model.safetensors") for path in (paths[0], paths[2]))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert EmbeddedSettings(steps=4).key != EmbeddedSettings(steps=3).key
    assert not list(tmp_path.rglob("*.tmp"))
