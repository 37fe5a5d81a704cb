"""The page of a card."""

import json

import pytest

from eval.gpucheck import page
from eval.gpucheck.parts import Result, Table


@pytest.fixture
def results(tmp_path):
    """A folder with results of two parts."""
    facts = {"device": "NVIDIA H100 80GB HBM3", "memory_gib": 79.6, "versions": {"torch": "2.9"}}
    machine = Result(facts=facts)
    machine.check("bf16 is supported", False, "only emulated")
    checked = Result()
    checked.check("sum", True, "2, by hand 2")
    checked.check("difference", False, "1, by hand 2")
    table = Table("Seconds", ["arm", "s"], [["A", 0.1234567], ["B", None]], "A note.")
    folder = tmp_path / "results"
    folder.mkdir()
    for name, result in {
        "machine": machine, "tests": checked, "cost": Result(tables=[table], skipped={"C": "out of memory"})
    }.items():  # fmt: skip
        result.write(folder, name)
    return folder


def test_the_page(results, tmp_path):
    written = page.page(results)
    assert written.startswith("# NVIDIA H100 80GB HBM3\n\nWritten by `trl-prorl gpu-check`. 80 GiB; torch 2.9.\n")
    assert "- **Failed: bf16 is supported**: only emulated" in written
    assert "1 of 2 checks hold.\n\n- **Failed: difference**: 1, by hand 2\n" in written
    assert "| A | 0.123 |" in written and "| B | – |" in written and "A note." in written
    assert "Left out: C (out of memory)" in written and "## Generation by vLLM\n\nNot measured." in written
    where = page.publish(results, tmp_path)
    assert where == tmp_path / "docs" / "gpu" / "nvidia-h100-80gb-hbm3.md" and where.read_text() == written
    assert set(json.loads(where.with_suffix(".json").read_text())) == {"machine", "tests", "cost"}
    page.publish(results, tmp_path)  # once more: listed once
    listed = (where.parent / "README.md").read_text()
    assert listed.count("- [NVIDIA H100 80GB HBM3](nvidia-h100-80gb-hbm3.md)") == 1


def test_cells():
    found = [page.cell(value) for value in (None, 0.0, 1234.5, 0.00012, 12.345, 7, "x")]
    assert found == ["–", "0", "1.23e+03", "1.20e-04", "12.3", "7", "x"]
