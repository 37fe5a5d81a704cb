"""The page of a card; README.md and docs/performance.md quote the cards, or say that there is none."""

import json
import shutil
from pathlib import Path

import pytest

from eval.gpucheck import page
from eval.gpucheck.page import BEGIN, END, QUOTED
from eval.gpucheck.parts import Result, Table
from eval.gpucheck.runner import ROOT


@pytest.fixture
def results(tmp_path):
    """A folder with results of two parts."""
    facts = {"device": "NVIDIA H100 80GB HBM3", "memory_gib": 79.6, "versions": {"torch": "2.9"}}
    machine = Result(facts=facts)
    machine.check("bf16 is supported", False, "only emulated")
    parity = Result()
    parity.check("sum", True, "2, by hand 2")
    parity.check("difference", False, "1, by hand 2")
    table = Table("Seconds", ["arm", "s"], [["A", 0.1234567], ["B", None]], "A note.")
    folder = tmp_path / "results"
    folder.mkdir()
    for name, result in {
        "machine": machine, "parity": parity, "cost": Result(tables=[table], skipped={"C": "out of memory"})
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
    assert set(json.loads(where.with_suffix(".json").read_text())) == {"machine", "parity", "cost"}
    page.publish(results, tmp_path)  # once more: listed once
    listed = (where.parent / "README.md").read_text()
    assert listed.count("- [NVIDIA H100 80GB HBM3](nvidia-h100-80gb-hbm3.md)") == 1


def test_cells():
    found = [page.cell(value) for value in (None, 0.0, 1234.5, 0.00012, 12.345, 7, "x")]
    assert found == ["–", "0", "1.23e+03", "1.20e-04", "12.3", "7", "x"]


@pytest.fixture
def checkout(tmp_path):
    for name in QUOTED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "docs" / "gpu").mkdir()
    return tmp_path


def card(checkout: Path, steps: dict[str, float]) -> None:
    """The update phase takes so many seconds, and generation one."""
    check = {"name": "x", "passed": True, "found": ""}
    rows = {name: {"whole": [step + 1], "phase": [step]} for name, step in steps.items()}
    parts = {
        "machine": {"checks": [check], "facts": {"device": "NVIDIA X"}},
        "parity": {"checks": [check, check | {"passed": False}], "facts": {}},
        "cost": {"checks": [], "facts": {"shape, μ=2": rows}},
    }
    (checkout / "docs" / "gpu" / "nvidia-x.json").write_text(json.dumps(parts))


def test_the_files_say_what_is_known_of_the_cards_of_this_checkout(checkout):
    for path in (ROOT / "docs" / "gpu").glob("*.json"):
        shutil.copy(path, checkout / "docs" / "gpu")
    page.quote(checkout)
    for name in QUOTED:
        assert (checkout / name).read_text() == (ROOT / name).read_text()


@pytest.mark.parametrize(
    "name, link", [("README.md", "docs/gpu/nvidia-x.md"), ("docs/performance.md", "gpu/nvidia-x.md")]
)
def test_a_card_is_quoted_by_its_numbers(checkout, name, link):
    card(checkout, {"TRL β>0": 3.0, "A packed": 2.0, "B packed": 1.0})
    page.quote(checkout)
    page.quote(checkout)  # nothing is added twice
    before, began, rest = (checkout / name).read_text().partition(BEGIN)
    said, ended, after = rest.partition(END)
    assert began and ended and BEGIN not in after and (before, after) == parts_of(ROOT / name)
    said = " ".join(said.split())
    assert f"On one [NVIDIA X]({link}) 2 of 3 checks hold" in said and "ot yet measured" not in said
    assert "1.33 times as fast as TRL's with a reference in A (1.50 without generation)" in said
    assert "and 2.00 times (3.00) in B, which is a different objective (shape, μ=2)" in said


def test_a_card_without_a_cost_is_quoted_without_it(checkout):
    card(checkout, {"TRL β>0": 3.0, "A packed": 2.0})
    page.quote(checkout)
    said = " ".join((checkout / "README.md").read_text().split())
    assert "2 of 3 checks hold; what a step costs there has not been measured." in said


def parts_of(path: Path) -> tuple[str, str]:
    text = path.read_text()
    return text.partition(BEGIN)[0], text.partition(END)[2]
