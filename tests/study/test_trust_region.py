"""The choice and the differences of study/trust_region.py, on numbers computed by hand."""

import importlib
from pathlib import Path

import pandas as pd
import pytest


@pytest.fixture
def study(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "study")
    module = importlib.import_module("trust_region")
    monkeypatch.setattr(module, "TABLE", tmp_path / "table.csv")
    return module


def save(study, part, sampled):
    """Add rows of a part; `sampled` is a function of the run."""
    rows = [dict(zip(study.NAMES, run, strict=True)) | {"sampled": sampled(run)} for run in study.runs_of(part)]
    frame = pd.DataFrame(rows).assign(greedy=0.5)
    study.append(study.TABLE, frame, study.NAMES)


def test_the_best_threshold_runs_again_if_it_is_another(study):
    best = {"ipo": 0.1, "B": 3.0}
    save(study, "tuning", lambda run: 0.9 if run[3] == best.get(run[2], study.THRESHOLDS[run[2]]) else 0.2)
    expected = {("tuned", base, name, value) for base in range(1, 6) for name, value in best.items()}
    assert set(study.runs_of("tuned")) == expected


def test_differences_are_paired_by_starting_model(study):
    gains = (0.02, 0.04, 0.00, 0.03, 0.06)  # of ipo: mean 0.03, standard error 0.01
    save(study, "papers", lambda run: run[1] / 10 + (gains[run[1] - 1] if run[2] == "ipo" else 0.0))
    rows = study.table("papers").set_index("name")
    ipo = rows.loc["ipo, sampled"]
    assert ipo["mean"] == pytest.approx(0.03)
    assert (ipo["low"], ipo["high"]) == pytest.approx((0.03 - 2.7764 * 0.01, 0.03 + 2.7764 * 0.01), abs=1e-5)
    assert rows.loc["m2po, sampled", "mean"] == 0.0
    assert len(rows) == 10
