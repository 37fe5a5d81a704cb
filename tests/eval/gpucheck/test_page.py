"""The page of a card, from results worked out by hand."""

import json

import pytest

from eval.gpucheck import page
from eval.gpucheck.parts import Result
from eval.stepcost.settings import BASELINE


TRL = {"generation": 1.0, "scoring": 1.0, "update": 2.0, "phase": [3.0] * 3, "whole": [4.0] * 3}
MINE = {"generation": 0.5, "scoring": 0.1, "update": 1.4, "phase": [2.0, 1.0, 1.5], "whole": [2.5, 1.6, 3.2]}
MACHINE = {"device": "NVIDIA H100 80GB HBM3", "memory": "80", "versions": {"torch": "2.9"}}


@pytest.fixture
def results(tmp_path):
    """A folder with results of two parts."""
    folder = tmp_path / "results"
    folder.mkdir()
    Result({}, passed=1, failed={"test_a: test_wrong": "assert 1 == 2"}).write(folder, "tests")
    arms = {BASELINE: TRL, "A packed": MINE | {"peak": 7.0}}
    Result({}, skipped={"C": "out of memory"}, seconds={"μ=2": arms}).write(folder, "cost")
    return folder


def test_the_page(results, tmp_path):
    written = page.page(results, MACHINE)
    assert written.startswith("# NVIDIA H100 80GB HBM3\n\nWritten by `trl-prorl gpu-check`. 80 GiB; torch 2.9.\n")
    assert "1 of 2 checks hold.\n\n- **Failed: test_a: test_wrong**: assert 1 == 2\n" in written
    # The ratios of the phases are 1.5, 3, 2, of the whole steps 1.6, 2.5, 1.25.
    assert "| A packed | 0.5 | 0.1 | 1.4 | 2.5 | 2.00 | 1.60 | 7.00 |" in written
    assert f"| {BASELINE} | 1 | 1 | 2 | 4 | 1.00 | 1.00 | – |" in written
    assert "- Left out: C (out of memory)" in written and "the larger model\n\nNot measured." in written
    where = page.publish(results, tmp_path, MACHINE)
    assert where == tmp_path / "docs" / "gpu" / "nvidia-h100-80gb-hbm3.md" and where.read_text() == written
    assert set(json.loads(where.with_suffix(".json").read_text())) == {"tests", "cost"}
    page.publish(results, tmp_path, MACHINE)  # once more: listed once
    listed = (where.parent / "README.md").read_text()
    assert listed.count("- [NVIDIA H100 80GB HBM3](nvidia-h100-80gb-hbm3.md)") == 1
