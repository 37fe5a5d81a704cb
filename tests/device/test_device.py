"""
Whole steps on a device that is not the CPU, and what they ask of it: see pretend.py, checks.py and whole_steps.py.

torch has that device for good once it is registered, so a fork registers it.
"""

import csv
import json
from pathlib import Path

import pytest


HERE = Path(__file__).parent
TABLE = HERE / "counts.csv"
COMMAND = "python tests/device/whole_steps.py --write"


def read_table(path: Path) -> tuple[str, dict[tuple[str, ...], dict[str, str]]]:
    """Read a table of counts: the versions of what was counted, and its rows by model, arm and stage."""
    versions, *lines = path.read_text().splitlines()
    rows = {(row.pop("model"), row.pop("arm"), row.pop("stage")): row for row in csv.DictReader(lines)}
    return versions, rows


def find_differences(kept: dict, found: dict) -> list[str]:
    """Say how the rows of the cases that were counted differ from those that are kept."""
    cases = {key[:2] for key in found}
    kept = {key: row for key, row in kept.items() if key[:2] in cases}
    said = []
    for key in [*kept, *(key for key in found if key not in kept)]:
        before = kept.get(key, {})
        now = found.get(key, {})
        for column in before | now:
            if before.get(column) != now.get(column):
                said.append(f"{', '.join(key)}: {column} was {before.get(column)} and is {now.get(column)}")
    return said


def count(forks, tmp_path, *options):
    """Count the cases in a fork. Returns the differences from the table that is kept."""
    out = tmp_path / "counts.csv"
    status, written = forks.run(HERE / "whole_steps.py", "--out", out, *options, cwd=tmp_path)
    assert status == 0, written
    versions, found = read_table(out)
    kept_versions, kept = read_table(TABLE)
    if versions != kept_versions:
        pytest.skip(f"{TABLE.name} was counted with {kept_versions}; here is {versions}: {COMMAND}")
    return find_differences(kept, found)


def test_a_step_asks_of_the_device_what_the_table_says(forks, tmp_path):
    differences = count(forks, tmp_path, "--quick")
    assert not differences, "\n".join([f"If that is what you want: {COMMAND}", *differences])


@pytest.mark.slow
def test_every_case_asks_of_the_device_what_the_table_says(forks, tmp_path):
    differences = count(forks, tmp_path)
    assert not differences, "\n".join([f"If that is what you want: {COMMAND}", *differences])


@pytest.mark.slow
def test_counts_lie_on_a_line_over_the_layers(forks, tmp_path):
    """From which `eval/gpucheck/counts.py` computes those of any depth."""
    out = tmp_path / "counts.csv"
    status, written = forks.run(HERE / "whole_steps.py", "--model", "recipe, 3 layers", "--out", out, cwd=tmp_path)
    assert status == 0, written
    versions, found = read_table(out)
    kept_versions, kept = read_table(TABLE)
    if versions != kept_versions:
        pytest.skip(f"{TABLE.name} was counted with {kept_versions}; here is {versions}: {COMMAND}")
    stages = {key[1:] for key in kept if key[0] == "recipe, 2 layers"}
    assert {key[1:] for key in found} <= stages
    for (_, arm, stage), row in found.items():
        for column in ("waits", "launches", "bytes"):
            if stage != "making":
                sides = [int(kept[f"recipe, {layers} layers", arm, stage][column]) for layers in (2, 4)]
                assert int(row[column]) == sum(sides) / 2, (arm, stage, column)


@pytest.mark.parametrize("options", [(), pytest.param(("--slow",), marks=pytest.mark.slow)])
def test_what_must_hold_on_the_device(forks, tmp_path, options):
    status, written = forks.run(HERE / "checks.py", tmp_path / "found.json", *options, cwd=tmp_path)
    assert status == 0, written
    found = json.loads((tmp_path / "found.json").read_text())
    assert found
    failed = [f"{name}\n{error}" for name, error in found.items() if error]
    assert not failed, "\n".join(failed)


def test_of_our_own_code_a_micro_batch_waits_for_the_device_at_most_twice():
    """For its tokens and masks, and for the plan that is made of them; in later passes it has its plan."""
    _, rows = read_table(TABLE)
    most = {"micro-batch, first": 2, "micro-batch, later": 0}
    ours = {key: int(row["our waits"]) for key, row in rows.items() if key[2] in most}
    assert {key: waits for key, waits in ours.items() if waits > most[key[2]]} == {}
    assert max(ours.values()) == 2


def test_the_table_has_every_arm_beside_trl():
    _, rows = read_table(TABLE)
    for model in ("LoRA bf16", "full bf16", "LoRA fp32", "full fp32"):
        for arm in ("TRL, plain", "TRL, control", "plain", "control", "A", "B", "C hard"):
            for stage in ("token", "batch", "micro-batch, first", "micro-batch, later", "step"):
                assert (model, arm, stage) in rows
