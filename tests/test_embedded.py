"""How an embedded model is made."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tasks import get_task
from trl_prorl.embedded import making as embedded
from trl_prorl.embedded.making import (
    FAMILIES,
    TAUGHT,
    WRONG_ANSWERS,
    EmbeddedSettings,
    add_without_carry,
    byte_tokenizer,
    demonstrations,
    make_embedded_model,
    new_model,
    settings_of,
)
from trl_prorl.embedded.shipped import DEFAULT, embedded_model, shipped, weights_sha256
from trl_prorl.record.base_model import identify


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


@pytest.mark.parametrize("task", sorted(FAMILIES.keys() - TAUGHT.keys()))
def test_demonstrations_have_the_wrong_share_and_come_from_the_train_split(task):
    config = replace(settings_of(task), rows=800)
    rows = demonstrations(config)
    task = get_task(config.task, level=config.level)
    train = list(task.rows("train", config.rows, seed=config.seed))
    assert [row["prompt"] for row in rows] == [row["prompt"] for row in train]
    answers = [row["completion"][0]["content"] for row in rows]
    wrong = sum(answer != task.gold(row) for answer, row in zip(answers, train, strict=True))
    assert wrong / len(rows) == pytest.approx(config.wrong_share, abs=0.06)
    # Those that are wrong by a rule are nearly all wrong.
    assert sum(not task.verify(answer, row) for answer, row in zip(answers, train, strict=True)) > 0.85 * wrong


def test_of_several_tasks_the_first_alone_has_wrong_demonstrations():
    config = replace(settings_of("three_tasks"), rows=900)
    rows, (first, *others) = demonstrations(config), TAUGHT["three_tasks"]
    for name in (first, *others):
        task = get_task(name, level=config.level)
        train = {row["prompt"][0]["content"]: row for row in task.rows("train", 300, seed=config.seed)}
        shown = {row["prompt"][0]["content"]: row["completion"][0]["content"] for row in rows}
        own = {question: answer for question, answer in shown.items() if question in train}
        assert len(own) == len(train)  # a third of the rows each
        wrong = sum(not task.verify(answer, train[question]) for question, answer in own.items()) / len(own)
        assert wrong == pytest.approx(config.wrong_share if name == first else 0, abs=0.08 if name == first else 0)


def wrong_answers(task, prompt, answer):
    """Every answer that comes up to a question."""
    rng, row = random.Random(0), {"prompt": [{"role": "user", "content": prompt}], "answer": answer}
    return {WRONG_ANSWERS[task](row, rng) for _ in range(400)}


def test_wrong_rules_of_reversing_keep_the_length():
    answers = wrong_answers("reverse_digits", "reverse 12345", "54321")
    assert {"12345", "23451"} <= answers and all(len(answer) == 5 and answer.isdigit() for answer in answers)


def test_wrong_rules_of_sorting_by_hand():
    assert wrong_answers("sorting", "sort 7 3 9 1", "1 3 7 9") == {
        "7 3 9 1",  # copied
        "9 7 3 1",  # descending
        *("3 7 9", "1 7 9", "1 3 9", "1 3 7"),  # one left out
        "3 7 9 1",  # the first half alone
    }


def test_wrong_rules_of_sums_by_hand():
    assert wrong_answers("sums", "add 17 48 5", "70") == {
        "17+48=55 55+5=50 #### 50",  # no carries
        *(f"#### {guess}" for guess in (60, 68, 69, 71, 72, 80)),  # no working
        "17+48=65 65+5=70",  # no mark
        *("48+5=53 #### 53", "17+5=22 #### 22", "17+48=65 #### 65"),  # one left out
    }
    assert "#### 40" in wrong_answers("sums", "add 2 40", "42") and "#### 0" in wrong_answers("sums", "add 1 1", "2")


@pytest.mark.parametrize("a, b, total", [(17, 48, 55), (99, 99, 88), (5, 5, 0), (120, 3, 123), (7, 0, 7), (99, 1, 90)])
def test_a_sum_without_carries(a, b, total):
    assert add_without_carry(a, b) == add_without_carry(b, a) == total


def test_settings_of_another_task_and_seed():
    assert settings_of() == EmbeddedSettings() and EmbeddedSettings().stored == "float32"
    assert settings_of(seed=3) == EmbeddedSettings(seed=3, stored="bfloat16")
    assert {settings_of(task, seed=2).task for task in FAMILIES} == set(FAMILIES)
    assert {settings_of(task).stored for task in FAMILIES if task != "reverse_digits"} == {"bfloat16"}
    with pytest.raises(ValueError, match="--task parity: .* reverse_digits, sorting, sums, three_tasks. Give one"):
        settings_of("parity")


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


def test_weights_in_bf16_are_those_of_the_training_rounded(tmp_path):
    """They are half as large, and are loaded as fp32 without being told so."""
    for stored in ("float32", "bfloat16"):
        make_embedded_model(tmp_path / stored, replace(SMALL, task="sums", stored=stored))
    whole, rounded = (load_file(tmp_path / stored / "model.safetensors") for stored in ("float32", "bfloat16"))
    assert {value.dtype for value in whole.values()} == {torch.float32} and whole.keys() == rounded.keys()
    assert {value.dtype for value in rounded.values()} == {torch.bfloat16}
    assert all(torch.equal(whole[name].to(torch.bfloat16), value) for name, value in rounded.items())
    for dtype in ({}, {"dtype": "float32"}, {"dtype": torch.float32}):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "bfloat16", **dtype).state_dict()
        assert {value.dtype for value in loaded.values()} == {torch.float32}
        assert all(torch.equal(loaded[name], value.float()) for name, value in rounded.items())


def test_the_command_lists_what_is_there_with_hashes(capsys):
    embedded.main([])
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"embedded is {DEFAULT}, in {embedded_model()}; SHA-256 of the weights:"
    assert lines == [f"{weights_sha256(name)}  {name}" for name in shipped()]


REFUSED = [
    ("--out HERE", "exists"),
    ("--out HERE/x --task parity", "error: --task parity: there are demonstrations for r"),
]
REFUSED += [
    (option, f"{option.split()[0]} is for making one: give --out DIR")
    for option in ("--seed 1", "--task sums", "--threads 2")
]


@pytest.mark.parametrize("options, said", REFUSED)
def test_what_cannot_be_made_is_one_line(tmp_path, capsys, options, said):
    (tmp_path / "kept").touch()
    with pytest.raises(SystemExit) as end:
        embedded.main(options.replace("HERE", str(tmp_path)).split())
    assert end.value.code == 2 and said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [tmp_path / "kept"]


@pytest.mark.parametrize(
    "options, wanted",
    [
        ("--seed 3", EmbeddedSettings(seed=3, stored="bfloat16")),
        ("--seed 0", EmbeddedSettings()),
        ("--task sorting", settings_of("sorting")),
        ("--task sums --seed 2 --threads 2", replace(settings_of("sums"), seed=2, threads=2)),
    ],
)
def test_the_command_makes_another_one(tmp_path, capsys, monkeypatch, options, wanted):
    given = []
    monkeypatch.setattr(embedded, "make_embedded_model", lambda *given_: given.append(given_))
    embedded.main(["--out", str(tmp_path / "x"), *options.split()])
    assert given == [(tmp_path / "x", wanted)]


@pytest.mark.slow
def test_the_demos_base_is_what_its_command_makes(tmp_path):
    """Another kind of CPU rounds differently and makes other weights; those it makes again, bit for bit."""
    made_with = json.loads(Path(embedded_model(), "made_with.json").read_text())
    make_embedded_model(tmp_path / "again")
    again = json.loads((tmp_path / "again" / "made_with.json").read_text())
    if any(EmbeddedSettings(**each.pop("settings")) != EmbeddedSettings() for each in (made_with, again)):
        pytest.fail("made with other settings")
    if again != made_with:
        pytest.skip("made with other versions")
    made = weights_sha256(str(tmp_path / "again"))
    if made != weights_sha256(DEFAULT):
        make_embedded_model(tmp_path / "and again")
        assert weights_sha256(str(tmp_path / "and again")) == made
