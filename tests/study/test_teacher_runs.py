"""The runs and the differences of study/teacher.py, on numbers computed by hand."""

import importlib
from pathlib import Path

import pandas as pd
import pytest


@pytest.fixture
def study(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "study")
    module = importlib.import_module("teacher")
    monkeypatch.setattr(module, "TABLE", tmp_path / "table.csv")
    monkeypatch.setenv("BASES", "bases")
    monkeypatch.setenv("FOLDER", str(tmp_path))
    return module


def test_a_teacher_is_trained_before_its_student_and_never_its_own_model(study):
    runs = study.runs()
    for run in runs:
        words = study.keys_of(run).split()
        if "--ref_model" not in words:
            continue
        teacher = Path(words[words.index("--ref_model") + 1]).name
        task, base, variant = teacher.split("-")
        assert variant == "verifier"
        assert (task, int(base)) != run[:2]
        assert runs.index((task, int(base), variant)) < runs.index(run)


def test_a_student_is_compared_with_its_own_teacher(study):
    rows = [dict(zip(study.NAMES, run, strict=True)) | {"sampled": 0.0, "greedy": 0.0} for run in study.runs()]
    frame = pd.DataFrame(rows).assign(untrained_sampled=0.0, untrained_greedy=0.0, tokens=1)
    frame.loc[frame["variant"] == "verifier", "sampled"] = frame["base"] / 10
    frame.loc[frame["variant"] == "teacher_alone", "sampled"] = (frame["base"] % 5 + 1) / 10 - 0.02
    frame.to_csv(study.TABLE, index=False)
    sampled, greedy = study.differences(study.accuracies(), "sorting", [("teacher_alone", "its_teacher")])
    assert sampled["mean"] == pytest.approx(-0.02)
    assert (sampled["n"], greedy["mean"]) == (5, 0.0)
