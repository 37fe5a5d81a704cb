"""The demo, in full, as `make demo` runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trl_prorl.embedded_base import DEFAULT, weights_sha256


ROOT = Path(__file__).parent.parent
ARMS = {"plain": "plain", "control": "control", "variantA": "A", "variantB": "B", "variantC": "C"}


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(ROOT / "recipes" / "demo.py"), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return out, done.stdout


def test_a_recipe_that_is_not_there_is_one_line(tmp_path):
    command = [
        sys.executable,
        str(ROOT / "recipes" / "demo.py"),
        "--out",
        str(tmp_path),
        "--arms",
        "plain",
        "variantD",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "--arms variantD" in done.stderr and "variantA, variantB" in done.stderr


@pytest.mark.slow
def test_it_says_which_base_it_starts_from(demo):
    assert f"{DEFAULT}, SHA-256 of its weights {weights_sha256(DEFAULT)[:12]}" in demo[1]


@pytest.mark.slow
def test_the_control_clamps_and_the_resets_free_it(demo):
    out, _ = demo
    passk = {arm: json.loads((out / arm / "passk.json").read_text()) for arm in ARMS}
    trained = {arm: result["trained"]["pass@1"] for arm, result in passk.items()}
    gain = {arm: trained[arm] - passk[arm]["base"]["pass@1"] for arm in ARMS}
    assert min(gain["variantA"], gain["variantB"], gain["variantC"]) >= 0.35, gain
    assert gain["control"] < min(gain["variantA"], gain["variantB"], gain["variantC"]) - 0.1, gain
    for arm in ("variantA", "variantC"):
        assert len((out / arm / "events.jsonl").read_text().splitlines()) >= 3


@pytest.mark.slow
def test_b_never_scores_a_reference(demo):
    out, _ = demo
    rows = [json.loads(line) for line in (out / "variantB" / "metrics.jsonl").read_text().splitlines()]
    assert sum(row["ref_forward_calls"] + row["old_forward_calls"] for row in rows) == 0
    assert not (out / "variantB" / "ref").exists() and (out / "variantA" / "ref").exists()


@pytest.mark.slow
def test_the_report_is_written_and_shown(demo):
    out, shown = demo
    report = (out / "report.md").read_text()
    for arm, variant in ARMS.items():
        assert arm in report and arm in shown
        assert json.loads((out / arm / "env.json").read_text())["variant"] == variant
    assert "different objective" in report
    for picture in ("summary.png", "ref_cost.png"):
        assert (out / picture).read_bytes().startswith(b"\x89PNG") and picture in report
