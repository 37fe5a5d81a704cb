"""Held-out pass@k of a run of a reward and data of one's own, from a script."""

import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM

from eval import boundary, compare, report
from eval.run_folder.reading import load_run
from trl_prorl import evaluate
from trl_prorl.errors import InputError
from trl_prorl.hub.card import model_card
from trl_prorl.pass_at_k import pass_at_k


def rows_of(prompts):
    return Dataset.from_dict({"prompt": prompts, "letter": ["e"] * len(prompts)})


SIDES = ("base", "trained")
ROWS = rows_of([f"say {word}" for word in "one two three four".split()])


def holds_letter(completion, row):
    return row["letter"] in completion


def frames(run_dir, side):
    """The samples of a side, by temperature."""
    return {
        json.loads((folder / "_settings.json").read_text())["temperature"]: pd.read_parquet(folder / "samples.parquet")
        for folder in (Path(run_dir) / "samples").glob(f"{side}-*")
    }


@pytest.mark.parametrize("lora", [True, False])
def test_the_numbers_are_the_verdicts_of_the_samples(run, lora, tmp_path, capsys):
    trained = run(lora=lora, max_steps=2)
    before = {name: value.clone() for name, value in trained.model.named_parameters()}
    result = evaluate(trained, ROWS, holds_letter, n=6, k=[1, 2], max_new_tokens=8)
    passk = load_run(trained.run_dir).passk
    assert [passk[side]["correct"] for side in SIDES] == [result[side]["correct"] for side in SIDES]
    assert passk["task"] == "own"
    assert passk["step"] == 2
    for side in SIDES:
        (frame,) = (frame for temperature, frame in frames(trained.run_dir, side).items() if temperature)
        assert [holds_letter(text, {"letter": "e"}) for text in frame["completion"]] == list(frame["correct"])
        counts = frame.groupby("prompt_id", sort=False)["correct"].sum()
        assert len(frame) == 24
        assert result[side]["pass@2"] == pytest.approx(sum(pass_at_k(6, int(c), 2) for c in counts) / 4)
    assert all(torch.equal(before[name], value) for name, value in trained.model.named_parameters())
    # Base is the model that training began from: its greedy completions are.
    model = AutoModelForCausalLM.from_pretrained(trained.base_name())
    greedy = frames(trained.run_dir, "base")[0.0]
    assert sorted(greedy["prompt"]) == sorted(ROWS["prompt"])
    for text, ids in zip(greedy["prompt"], greedy["ids"], strict=True):
        (prompt,) = trained.tokenize_prompts([text])
        expected = model.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False)[0, len(prompt) :]
        assert list(ids) == expected[: len(ids)].tolist()
    capsys.readouterr()
    again = evaluate(trained, ROWS, lambda completion, row: not holds_letter(completion, row), n=6, max_new_tokens=8)
    assert "the graders have changed" in capsys.readouterr().out
    assert [6 - c for c in again["trained"]["correct"]] == result["trained"]["correct"]

    # What reads a task's reads it, too.
    evaluate(trained, rows_of([f"say {i}" for i in range(20)]), holds_letter, n=2, max_new_tokens=4, greedy=False)
    run_dir = str(trained.run_dir)
    assert boundary.main(["--run", run_dir]) == report.main(["--runs", run_dir, "--out", str(tmp_path / "r")]) == 0
    assert compare.main(["--runs", run_dir, run_dir]) == 2  # one run
    assert "evaluate(trainer, rows, verifier)" in (tmp_path / "r" / "report.md").read_text()
    assert "evaluate(trainer, rows, verifier)" not in str(model_card(run_dir))  # it is evaluated


def test_not_evaluated_yet(run):
    card = str(model_card(run(max_steps=1).run_dir))
    assert "Not evaluated yet. `evaluate(trainer, rows, verifier)`" in card
    assert "started by `" in card


@pytest.mark.parametrize(
    ("rows", "settings", "said"),
    [
        ([{"prompt": "x"}], {}, "rows: a datasets.Dataset"),
        (Dataset.from_dict({"question": ["x", "y"]}), {}, "a column prompt"),
        (rows_of(["x"]), {}, "--prompts 1"),
        (ROWS, {"n": 0}, "--n 0"),
        (ROWS, {"k": [20]}, "--k 20"),
    ],
)
def test_refused(make_trainer, rows, settings, said):
    with pytest.raises(InputError, match=said):
        evaluate(make_trainer(), rows, holds_letter, **settings)
