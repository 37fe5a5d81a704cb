"""How an embedded model is made."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks import get_task
from trl_prorl.embedded import making as embedded
from trl_prorl.embedded.making import (
    EmbeddedSettings,
    byte_tokenizer,
    demonstrations,
    make_embedded_model,
    new_model,
    wrong_answer,
)
from trl_prorl.embedded.shipped import DEFAULT, embedded_model, weights_sha256
from trl_prorl.run.base_model import identify


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


SMALL = EmbeddedSettings(hidden_size=16, layers=1, heads=2, intermediate_size=16, rows=64, steps=3, batch_size=8)


def test_it_is_made_the_same_every_time(tmp_path):
    for name in ("a", "b"):
        make_embedded_model(tmp_path / name, SMALL)
    make_embedded_model(tmp_path / "c", replace(SMALL, seed=1))
    sums = [(tmp_path / name / "SHA256SUMS").read_text() for name in ("a", "b", "c")]
    assert sums[0] == sums[1] and weights_sha256(str(tmp_path / "a")) != weights_sha256(str(tmp_path / "c"))
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "c"}
    base = identify(str(tmp_path / "c"))
    assert base.name == str(tmp_path / "c") and base.sha256 == weights_sha256(base.name) and not base.is_embedded
    assert json.loads((tmp_path / "c" / "made_with.json").read_text())["settings"]["seed"] == 1


def test_a_folder_that_is_there_is_left_alone(tmp_path, capsys):
    (tmp_path / "kept").write_text("")
    with pytest.raises(SystemExit) as end:
        embedded.main(["--out", str(tmp_path)])
    assert end.value.code == 2 and "exists" in capsys.readouterr().err and (tmp_path / "kept").exists()


def test_the_command_says_where_the_demos_is(capsys):
    embedded.main([])
    assert capsys.readouterr().out == (
        f"{DEFAULT}: {embedded_model()}\nSHA-256 of its weights: {weights_sha256(DEFAULT)}\n"
    )
    with pytest.raises(SystemExit):
        embedded.main(["--seed", "1"])
    assert "--out" in capsys.readouterr().err


def test_the_command_makes_another_seed(tmp_path, capsys, monkeypatch):
    given = []
    monkeypatch.setattr(embedded, "make_embedded_model", lambda *given_: given.append(given_))
    embedded.main(["--out", str(tmp_path / "x"), "--seed", "3"])
    assert given == [(tmp_path / "x", EmbeddedSettings(seed=3))]


@pytest.mark.slow
def test_the_demos_base_is_what_its_command_makes(tmp_path):
    """Another kind of CPU rounds differently and makes other weights; those it makes again, bit for bit."""
    made_with = json.loads(Path(embedded_model(), "made_with.json").read_text())
    make_embedded_model(tmp_path / "again")
    again = json.loads((tmp_path / "again" / "made_with.json").read_text())
    if again != made_with:
        pytest.skip("made with other versions")
    made = weights_sha256(str(tmp_path / "again"))
    if made != weights_sha256(DEFAULT):
        make_embedded_model(tmp_path / "and again")
        assert weights_sha256(str(tmp_path / "and again")) == made
