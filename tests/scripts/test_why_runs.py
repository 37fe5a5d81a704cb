"""scripts/why_runs.py on tables of rows made by hand."""

import importlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest


SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.parametrize("name", ["accuracy", "gold"])
def test_accuracy_is_read_by_both_of_its_names(tmp_path, monkeypatch, capsys, name):
    """No group has a signal, because all prompts are solved, or for another reason."""
    monkeypatch.syspath_prepend(SCRIPTS)
    script = importlib.import_module("why_runs")
    for accuracy, cause in ((0.95, "none"), (0.5, "no signal")):
        rows = pd.DataFrame({"step": np.arange(1, 101), name: accuracy, "frac_reward_zero_std": 1.0})
        rows.to_csv(tmp_path / "a.csv.xz", index=False)
        script.print_logs(tmp_path)
        assert capsys.readouterr().out.splitlines()[-1] == f"{{{cause!r}: 1}}"
