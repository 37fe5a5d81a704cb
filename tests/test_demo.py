"""The demo, in full, as `make demo` runs it, but with a training seed that the expected figures do not have."""

import json
import os
import subprocess
import sys

import pytest

from trl_prorl.cli import demo as demo_module
from trl_prorl.errors import RunError


SEED = 7
ARMS = {"plain": "plain", "control": "control", "variantA": "A", "variantB": "B", "variantC": "C"}


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | {"HF_HUB_OFFLINE": "1"}
    command = [*demo_module.COMMAND, "demo", "--out", str(out), "--seed", str(SEED)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out, done.stdout


@pytest.fixture
def trains(monkeypatch):
    """A function that lets each training be a Python program, which gets the words of `train` as `sys.argv`."""

    def replace(program: str) -> None:
        monkeypatch.setattr(demo_module, "COMMAND", [sys.executable, "-c", program])

    return replace


def test_a_finished_run_is_kept_and_another_resumes(tmp_path, trains):
    trains("import sys; print(*sys.argv[1:])")
    done, stopped = tmp_path / "control", tmp_path / "plain"
    for file in (done / "adapter_model.safetensors", stopped / "checkpoint-60" / "adapter_model.safetensors"):
        file.parent.mkdir(parents=True)
        file.touch()
    stopped.with_suffix(".log").write_text("before\n")
    for run in (done, stopped):
        demo_module.train(run, ["--seed", "7"])
    assert not done.with_suffix(".log").exists()
    first, line = stopped.with_suffix(".log").read_text().splitlines()
    assert first == "before"
    assert line.startswith(f"train tiny/plain --output_dir {stopped} ")
    assert line.endswith("--resume_from_checkpoint auto --seed 7")


def test_a_run_that_fails_is_one_line_with_its_own_error(tmp_path, trains):
    """Its buffered stdout is written last; the error of an earlier attempt is in the same file."""
    (tmp_path / "plain.err").write_text("error: before\n")
    trains("print('step 1'); raise SystemExit('error: the disk is full')")
    with pytest.raises(RunError, match=r"^plain ended with exit code 1, see .*plain\.err: error: the disk is full$"):
        demo_module.train(tmp_path / "plain", [])
    assert (tmp_path / "plain.log").read_text() == "step 1\n"
    trains("import os; os.kill(os.getpid(), 9)")
    with pytest.raises(RunError, match=r"^plain ended with exit code -9, see .*plain\.err: (?!error)"):
        demo_module.train(tmp_path / "plain", [])


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
    report = (out / "report.html").read_text()
    for arm, variant in ARMS.items():
        assert arm in report and arm in shown
        assert json.loads((out / arm / "env.json").read_text())["variant"] == variant
