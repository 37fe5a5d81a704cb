"""The demo, in full, as `make demo` runs it, with a seed of its own; and the table of what is expected of it."""

import csv
import hashlib
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from run_record import write_run

from eval.analysis.statistics import prediction_interval
from trl_prorl import demo as demo_module
from trl_prorl.embedded.shipped import DEFAULT, embedded_model, weights_sha256
from trl_prorl.launch.recipe_check import read_recipe


ROOT = Path(__file__).parent.parent
SEED = 7
PROGRESS = re.compile(r"(\w+: [\w\- ,]+: +\d+%\|.*)?")
ARMS = {"plain": "plain", "control": "control", "variantA": "A", "variantB": "B", "variantC": "C"}


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(ROOT / "recipes" / "demo.py"), "--out", str(out), "--seeds", str(SEED)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # Where nobody watches a bar, long work writes a line a minute, and nothing else is written.
    assert [line for line in done.stderr.splitlines() if not PROGRESS.fullmatch(line)] == []
    return out, done.stdout


def test_a_recipe_that_is_not_there_is_one_line(tmp_path):
    command = [sys.executable, str(ROOT / "recipes" / "demo.py"), "--out", tmp_path, "--arms", "plain", "variantD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "--arms variantD" in done.stderr and "variantA, variantA0, variantB" in done.stderr


@pytest.fixture
def script(monkeypatch):
    """A function that runs the demo's main, which trains nothing and evaluates nothing."""
    monkeypatch.setattr(demo_module, "train", lambda arms, side_by_side: None)
    monkeypatch.setattr(demo_module.subprocess, "run", lambda *args, **kwargs: None)

    def main(*arguments):
        monkeypatch.setattr(sys, "argv", ["demo.py", *arguments])
        demo_module.main()

    return main


def test_it_says_which_base_it_starts_from(script, tmp_path, capsys):
    script("--out", str(tmp_path / "out"))
    told = "base model: {}, SHA-256 of its weights {:.12}…\n"
    assert capsys.readouterr().out == told.format(DEFAULT, weights_sha256(DEFAULT))
    for name, content in (("made_with.json", b"{}"), ("config.json", b"{}"), ("model.safetensors", b"weights")):
        (tmp_path / name).write_bytes(content)
    script("--out", str(tmp_path / "out"), "--model_name_or_path", str(tmp_path))
    assert capsys.readouterr().out == told.format(tmp_path, hashlib.sha256(b"weights").hexdigest())
    with pytest.raises(SystemExit, match="error: .*embedded:reverse_digits:7' is not here"):
        script("--out", str(tmp_path / "out"), "--model_name_or_path", "embedded:reverse_digits:7")


def test_with_a_pretrained_model_it_is_two_arms_and_their_texts(monkeypatch, tmp_path, capsys):
    """Nothing is trained or evaluated; the samples are there already."""
    monkeypatch.setattr(demo_module, "embedded_model", lambda name: embedded_model())
    asked, trained = [], []
    monkeypatch.setattr(demo_module, "evaluate", lambda *words: asked.append(words))
    monkeypatch.setattr(demo_module, "train", lambda arms, side_by_side: trained.extend(arms))
    for run, label in (("control", "base"), ("control", "trained"), ("plain", "trained")):
        folder = tmp_path / run / "samples" / f"{label}-0"
        folder.mkdir(parents=True)
        rows = [("q", 0, "About [tea]", f"{run} {label} text", label == "base"), ("q", 1, "About [tea]", "no", True)]
        columns = ["prompt_id", "sample", "prompt", "completion", "correct"]
        pd.DataFrame(rows, columns=columns).to_parquet(folder / "samples.parquet")
    monkeypatch.setattr(sys, "argv", ["trl-prorl demo", "--model", "smollm2", "--out", str(tmp_path)])
    monkeypatch.setattr(demo_module.console, "_width", 200)
    demo_module.main()
    assert [(arm.name, arm.steps) for arm in trained] == [("control", 40), ("plain", 40)]
    assert all("smollm2" in " ".join(arm.command) for arm in trained)
    assert asked[0][:6] == ("passk", "--prompts", "24", "--n", "4", "--no-greedy") and "--checkpoints" not in asked[0]
    assert asked[1][:3] == ("drift", "--prompts", "8")
    said = capsys.readouterr().out
    shown = ("control base text ✓", "control trained text ", "plain trained text ", "[tea]")
    assert all(text in said for text in shown)
    assert "trained text ✓" not in said and " no " not in said


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
def test_every_arm_scores_what_is_expected(demo):
    """
    One run in twenty is outside its arm's 95 % interval; that one of five arms is outside happens more often. So each
    has an interval of 99 % here, which makes 95 % for all together.
    """
    out, _ = demo
    with open(ROOT / "recipes" / "tiny" / "expected.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert SEED not in {int(row["seed"]) for row in rows}
    for arm in ARMS:
        passk = json.loads((out / arm / "passk.json").read_text())
        _, low, high = prediction_interval([float(row["pass@1"]) for row in rows if row["recipe"] == arm], 0.99)
        assert low <= passk["trained"]["pass@1"] <= high, arm
        low, high = passk["base"]["interval@1"]  # the same model, by its hash; but samples of its own
        assert all(low <= float(row["base_pass@1"]) <= high for row in rows)


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


spec = importlib.util.spec_from_file_location("expected", ROOT / "recipes" / "tiny" / "expected.py")
expected = importlib.util.module_from_spec(spec)
spec.loader.exec_module(expected)


@pytest.fixture
def trained(tmp_path):
    """A function that writes a run as the demo leaves it, with some keys changed."""

    def write(recipe="variantA", seed=1, pass1=0.5, sha256=None, steps=240, **keys):
        config = read_recipe(expected.HERE / f"{recipe}.yaml")
        # As a run writes it: keys of our own, even where they are off, and no others that are.
        config = {"ref_reset_every": 0, "optimizer_reset": "keep", "beta_old": 0.0, "beta": 0.0} | config
        config |= {"ref_reset_stall": 0} | keys
        base = {"name": "embedded:reverse_digits:0", "sha256": sha256 or weights_sha256("embedded")}
        env = {"seed": seed, "base_model": base, "git_commit": "abc"}
        rows = [{"step": step + 1, "ref_forward_calls": step % 2} for step in range(steps)]
        passk = {"prompts": 256, "n": 16, "step": steps, "base": {"pass@1": 0.25}}
        passk |= {"trained": {"pass@1": pass1, "pass@8": 0.9}, "greedy": {"trained": {"accuracy": 0.8}}}
        return write_run(tmp_path / f"{recipe}_{seed}", config, rows, env=env, passk=passk)

    return write


@pytest.mark.parametrize("recipe", expected.RECIPES)
def test_a_run_is_known_by_its_keys(trained, recipe):
    row = expected.row_of(trained(recipe, seed=3))
    assert (row["recipe"], row["seed"], row["pass@1"], row["ref_forward_calls"]) == (recipe, 3, 0.5, 120)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"ref_reset_every": 30}, "a run of none of"),
        ({"ref_reset_drop": 0.1}, "a run of none of"),
        ({"max_steps": 60}, "a run of none of"),
        ({"sha256": "0" * 64}, "did not begin from the base"),
        ({"steps": 239}, "239 steps done"),
    ],
)
def test_a_run_that_does_not_belong_is_one_line(trained, changed, message):
    with pytest.raises(ValueError, match=message):
        expected.row_of(trained(**changed))


def test_from_runs_to_a_page(trained, tmp_path, monkeypatch):
    scores = {"plain": 0.7, "control": 0.4, "variantA": 0.6, "variantB": 0.66, "variantC": 0.6}
    runs = [trained(recipe, seed, score + 0.01 * seed) for recipe, score in scores.items() for seed in (1, 2, 3)]
    monkeypatch.setattr(expected, "TABLE", tmp_path / "expected.csv")
    expected.write_rows(runs)
    with open(tmp_path / "expected.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 15 and rows[0]["recipe"] == "plain" and rows[0]["pass@1"] == "0.710000"
    page = tmp_path / "page.md"
    page.write_text(f"before\n{expected.BEGIN}old\n{expected.END}after\n")
    text = expected.with_table(page, expected.read_rows())
    assert text.startswith("before\n") and text.endswith("after\n") and "old\n" not in text
    # mean 0.62, s = 0.01, t(0.975, 2) = 4.302653
    half = 4.302653 * 0.01 * math.sqrt(4 / 3)
    assert f"(variantA.yaml) | {expected.RECIPES['variantA']} | 0.620 | **[{0.62 - half:.3f}, " in text
    assert "3 training seeds" in text and "A − control +0.200 [+0.200, +0.200]" in text
    assert "B − A +0.060" in text and "plain − B +0.040" in text and "C − A +0.000" in text


def test_a_seed_twice_is_one_line(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(expected, "TABLE", tmp_path / "expected.csv")
    folder = trained()
    with pytest.raises(ValueError, match="twice"):
        expected.write_rows([folder, folder])
    assert not (tmp_path / "expected.csv").exists()


def test_the_page_says_what_the_table_says():
    assert expected.PAGE.read_text() == expected.with_table(expected.PAGE, expected.read_rows()), f"run {spec.origin}"


def test_the_table_has_five_seeds_or_more_of_every_arm_on_the_shipped_base():
    rows = expected.read_rows().to_dict("records")
    seeds = {recipe: Counter(row["seed"] for row in rows if row["recipe"] == recipe) for recipe in expected.RECIPES}
    assert len(seeds["plain"]) >= 5 and all(each == seeds["plain"] for each in seeds.values())
    assert {row["base_hash"] for row in rows} == {weights_sha256("embedded")}
    calls = {recipe: {row["ref_forward_calls"] for row in rows if row["recipe"] == recipe} for recipe in seeds}
    assert calls["plain"] == calls["variantB"] == {0} and calls["variantA"] == calls["control"] == {120}
