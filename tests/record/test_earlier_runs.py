"""Runs of an earlier version, in earlier_runs/: read and compared. One was rolled back."""

import json
import shutil
from pathlib import Path

import pytest

from trl_prorl.eval import compare, report


@pytest.fixture
def runs(tmp_path):
    return shutil.copytree(Path(__file__).with_name("earlier_runs"), tmp_path / "runs")


def test_report_and_compare_read_them(runs, tmp_path, capsys):
    assert report.main(["--runs", str(runs / "A"), str(runs / "plain"), "--out", str(tmp_path / "page")]) == 0
    pages = list(tmp_path.rglob("page*.html")) + list((tmp_path / "page").glob("*.html"))
    assert pages and "reverse_digits" in pages[0].read_text()
    capsys.readouterr()
    numbers = tmp_path / "numbers.json"
    assert compare.main(["--runs", str(runs / "A"), str(runs / "plain"), "--json", str(numbers)]) == 0
    assert "pass@1" in json.dumps(json.loads(numbers.read_text()))
