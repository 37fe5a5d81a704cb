"""The demo, in full, as `make demo` runs it, but with a training seed that the expected figures do not have."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from run_record import write_run

from trl_prorl import demo as demo_module
from trl_prorl.embedded.shipped import embedded_model


ROOT = Path(__file__).parent.parent
SEED = 7
ARMS = {"plain": "plain", "control": "control", "variantA": "A", "variantB": "B", "variantC": "C"}


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(ROOT / "recipes" / "demo.py"), "--out", str(out), "--seeds", str(SEED)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out, done.stdout


def test_with_a_pretrained_model_it_is_two_arms(monkeypatch, tmp_path, capsys):
    """Nothing is trained or evaluated; the samples are there already."""
    monkeypatch.setattr(demo_module, "embedded_model", lambda name: embedded_model())
    trained = []
    monkeypatch.setattr(demo_module, "evaluate", lambda *words: None)
    monkeypatch.setattr(demo_module, "show_runs", lambda runs, out: None)
    monkeypatch.setattr(demo_module, "train", lambda arms, side_by_side: trained.extend(arms))
    for run, label in (("control", "base"), ("control", "trained"), ("plain", "trained")):
        folder = tmp_path / run / "samples" / f"{label}-0"
        folder.mkdir(parents=True)
        columns = ["prompt_id", "sample", "prompt", "completion", "correct"]
        rows = [("q", 0, "About [tea]", f"{run} {label} text", label == "base")]
        pd.DataFrame(rows, columns=columns).to_parquet(folder / "samples.parquet")
    monkeypatch.setattr(sys, "argv", ["trl-prorl demo", "--model", "smollm2", "--out", str(tmp_path)])
    monkeypatch.setattr(demo_module.console, "_width", 200)
    demo_module.main()
    assert [(arm.name, arm.steps) for arm in trained] == [("control", 40), ("plain", 40)]
    assert all("smollm2" in " ".join(arm.command) for arm in trained)
    said = capsys.readouterr().out
    assert all(text in said for text in ("control base text", "control trained text", "plain trained text", "[tea]"))


def test_an_arm_deletes_nothing_that_it_did_not_write(tmp_path, caplog):
    out = tmp_path / "plain"
    files = {
        "notes.txt": "mine",
        "metrics.jsonl": '{"step": 1}\n',
        "checkpoint-1/model.safetensors": "stopped",
    }
    for name, content in files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(content)
    (tmp_path / "plain.log").write_text("before\n")
    arm = demo_module.DemoRun(ROOT / "recipes" / "tiny" / "plain.yaml", out, 1, [])
    arm.command = [sys.executable, "-c", "print('now')"]
    arm.start()
    assert arm.process.wait() == 0
    assert (tmp_path / "plain.log").read_text() == "before\nnow\n"
    assert (out / "notes.txt").read_text() == "mine"
    assert not (out / "metrics.jsonl").exists()
    assert (out / "earlier-1" / "checkpoint-1" / "model.safetensors").read_text() == "stopped"
    (out / "model.safetensors").write_text("somebody's")
    assert not arm.finished  # no run wrote them


def test_it_ends_with_one_table_of_the_arms_and_the_path_of_the_report(tmp_path, monkeypatch, capsys):
    """Numbers by hand: two arms of ten steps, four prompts of two samples each."""
    settings = {"prompts": 4, "n": 2, "k": [1, 2], "prompt_ids": ["a", "b", "c", "d"], "split": "test"}
    settings |= {"temperature": 1.0, "max_new_tokens": 512, "seed": 0, "task": "reverse_digits"}
    intervals = {"interval@1": [0.0, 1.0], "interval@2": [0.0, 1.0]}
    base = {"correct": [1, 0, 0, 0], "pass@1": 0.125, "pass@2": 0.25, **intervals}
    for name, rewards, correct, greedy, distance in (
        ("plain", [0.1] * 9 + [0.75], [2, 1, 0, 0], 0.5, 0.25),
        ("control", [0.2] * 10, [2, 2, 2, 1], 1.0, 0.125),
    ):
        trained = {"correct": correct, "pass@1": sum(correct) / 8, "pass@2": sum(map(bool, correct)) / 4, **intervals}
        sides = {"base": base, "trained": trained}
        sides["greedy"] = {side: {"accuracy": greedy, "correct": [1, 1, 0, 0]} for side in ("base", "trained")}
        rows = [{"step": step, "reward": reward} for step, reward in enumerate(rewards, start=1)]
        points = [{"step": step, "kl_to_base": kl} for step, kl in ((0, 0.0), (10, distance))]
        files = {"env": {"variant": name}, "passk": settings | sides, "drift": {"points": points}}
        write_run(tmp_path / name, {"output_dir": str(tmp_path / name)}, rows, **files)
    monkeypatch.setattr(demo_module.console, "_width", 80)
    demo_module.show_runs([tmp_path / "plain", tmp_path / "control"], tmp_path)
    shown = capsys.readouterr().out
    plain, control = [line for line in shown.splitlines() if "│" in line]
    assert [cell.strip() for cell in plain.split("│")] == ["plain", "0.75", "0.12 → 0.38", "0.50", "0.50", "0.250"]
    assert [cell.strip() for cell in control.split("│")] == ["control", "0.20", "0.12 → 0.88", "1.00", "1.00", "0.125"]
    assert str(tmp_path / "report.html") in shown


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
def test_the_report_is_written_and_the_arms_are_shown(demo):
    out, shown = demo
    report = (out / "report.md").read_text()
    for arm, variant in ARMS.items():
        assert arm in report and arm in shown
        assert json.loads((out / arm / "env.json").read_text())["variant"] == variant
    for picture in ("summary.png", "ref_cost.png"):
        assert (out / picture).read_bytes().startswith(b"\x89PNG")
        assert picture in report
