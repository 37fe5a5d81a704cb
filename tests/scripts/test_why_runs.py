"""scripts/why_runs.py on tables of rows made by hand."""

import importlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest


SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.parametrize("name", ["accuracy", "gold"])
def test_accuracy_is_read_by_both_of_its_names(tmp_path, monkeypatch, capsys, name):
    """It falls from 0.8 to 0.3 in 100 steps while the reward stays."""
    monkeypatch.syspath_prepend(SCRIPTS)
    script = importlib.import_module("why_runs")
    rows = pd.DataFrame({"step": np.arange(1, 101), name: np.linspace(0.8, 0.3, 100), "reward": 0.9})
    rows.to_csv(tmp_path / "a.csv.xz", index=False)
    script.print_logs(tmp_path)
    assert capsys.readouterr().out.splitlines()[-1] == "{'reward hacking': 1}"
