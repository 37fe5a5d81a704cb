"""Held-out pass@k of a run of a reward and data of one's own, from a script."""

import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from datasets import Dataset

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


@pytest.fixture(params=["lora", "full"])
def trained(request, make_trainer):
    trainer = make_trainer(lora=request.param == "lora", max_steps=2)
    trainer.train()
    return trainer


def test_the_numbers_are_the_verdicts_of_the_samples(trained, capsys):
    before = {name: value.clone() for name, value in trained.model.named_parameters()}
    result = evaluate(trained, ROWS, holds_letter, n=6, k=[1, 2], max_new_tokens=8)
    run_dir = Path(trained.run_dir)
    written = json.loads((run_dir / "passk.json").read_text())
    assert [written[side]["correct"] for side in SIDES] == [result[side]["correct"] for side in SIDES]
    held = {folder.name.split("-")[0]: folder for folder in (run_dir / "samples").iterdir()}
    assert set(held) == {"base", "trained"}
    run = load_run(run_dir)
    for side in SIDES:
        stores = [
            f for f in (run_dir / "samples").glob(f"{side}-*") if len(pd.read_parquet(f / "samples.parquet")) == 24
        ]
        (frame,) = (pd.read_parquet(store / "samples.parquet") for store in stores)
        assert [holds_letter(text, {"letter": "e"}) for text in frame["completion"]] == list(frame["correct"])
        counts = frame.groupby("prompt_id", sort=False)["correct"].sum()
        assert result[side]["pass@2"] == pytest.approx(sum(pass_at_k(6, int(c), 2) for c in counts) / 4)
    assert run.passk["task"] == "own" and run.passk["step"] == 2
    assert all(torch.equal(before[name], value) for name, value in trained.model.named_parameters())
    capsys.readouterr()
    again = evaluate(trained, ROWS, lambda completion, row: not holds_letter(completion, row), n=6, max_new_tokens=8)
    out = capsys.readouterr().out
    assert "the graders have changed" in out
    assert [6 - c for c in again["trained"]["correct"]] == result["trained"]["correct"]


def test_base_is_the_model_as_it_began(trained, tiny_model, tmp_path):
    """Its greedy completions are those of the model that training began from."""
    from transformers import AutoModelForCausalLM

    evaluate(trained, ROWS, holds_letter, n=2, max_new_tokens=8)
    stores = {
        json.loads((f / "_settings.json").read_text())["temperature"]: pd.read_parquet(f / "samples.parquet")
        for f in (Path(trained.run_dir) / "samples").glob("base-*")
    }
    model = AutoModelForCausalLM.from_pretrained(trained.base_name())
    greedy = stores[0.0]
    assert sorted(greedy["prompt"]) == sorted(ROWS["prompt"])
    for text, ids in zip(greedy["prompt"], greedy["ids"], strict=True):
        (prompt,) = trained.tokenize_prompts([text])
        expected = model.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False)[0, len(prompt) :]
        assert list(ids) == expected[: len(ids)].tolist()


def test_what_reads_a_task_s_reads_it_too(trained, tmp_path, capsys):
    evaluate(trained, rows_of([f"say {i}" for i in range(20)]), holds_letter, n=2, max_new_tokens=4, greedy=False)
    run_dir = str(trained.run_dir)
    assert boundary.main(["--run", run_dir]) == report.main(["--runs", run_dir, "--out", str(tmp_path / "r")]) == 0
    assert compare.main(["--runs", run_dir, run_dir]) == 2  # one run
    page = (tmp_path / "r" / "report.md").read_text()
    assert "evaluate(trainer, rows, verifier)" in page
    assert "evaluate(trainer, rows, verifier)" not in str(model_card(run_dir))  # it is evaluated


def test_not_evaluated_yet(make_trainer):
    trainer = make_trainer(max_steps=1)
    trainer.train()
    card = str(model_card(trainer.run_dir))
    assert "Not evaluated yet. `evaluate(trainer, rows, verifier)`" in card and "started by `" in card


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
