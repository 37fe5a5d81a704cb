"""`gpu-check`, where it can be seen without a GPU: its parts, their processes, what they count, the page."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from trl_prorl.embedded.shipped import byte_tokenizer
from trl_prorl.eval import gpu_check
from trl_prorl.eval.gpucheck import page, runner, steps
from trl_prorl.eval.gpucheck.runner import COST, PARTS, ROLLOUTS, STEPS, TESTS, VLLM, Result, run_command, run_parts
from trl_prorl.eval.stepcost import settings
from trl_prorl.eval.stepcost.settings import BASELINE
from trl_prorl.eval.stepcost.trainers import mixed_precision


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_so(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert gpu_check.main([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--cpu" in line
    assert not list(tmp_path.iterdir())
    (tmp_path / "taken").touch()
    assert gpu_check.main(["--cpu", "--out", "taken"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "taken" in line


@pytest.mark.slow
def test_all_of_it_at_toy_size(capsys, tmp_path, monkeypatch):
    """What CI runs: every part but those that need a GPU."""
    monkeypatch.chdir(tmp_path)
    status = gpu_check.main(["--cpu", "--out", "out"])
    assert status == 0, capsys.readouterr().out
    written = (tmp_path / "out" / "page.md").read_text()
    assert "Not measured" not in written
    assert "Failed" not in written
    for measured in ("A packed", "plain: a generation batch, s", "A: growth of the memory between steps, MiB"):
        assert f"| {measured} | " in written
    assert {path.name for path in tmp_path.iterdir()} == {"out"}  # nothing among the documents


def python(code):
    return [sys.executable, "-c", code]


@pytest.fixture
def call(tmp_path, monkeypatch):
    """A function that runs parts whose commands are lines of Python: what failed, and what was left."""

    def call(minutes=5.0, again=False, made_with="x", **codes):
        monkeypatch.setattr(runner, "reason_to_skip", lambda name, cpu: None)
        monkeypatch.setattr(runner, "command", lambda name, cpu, report: python(codes[name]))
        return run_parts(codes, True, tmp_path, {"code": made_with}, minutes, again)

    return call


def test_what_passed_is_kept_and_what_failed_runs_again(call, tmp_path):
    measures = "import pathlib; f = pathlib.Path('cost/arms.json'); f.parent.mkdir(exist_ok=True)\n"
    measures += "f.write_text('{\"results\": {\"a\": {}}}'); open('ran', 'a').write('x')"
    codes = {COST: f"import os; os.chdir({str(tmp_path)!r}); {measures}", TESTS: "raise RuntimeError('no kernel')"}
    (failed,), left = call(**codes)
    assert "exit code 1: RuntimeError: no kernel" in failed
    assert left == []
    assert Result.read(tmp_path, COST).seconds == {"a": {}}
    call(**codes)
    assert (tmp_path / "ran").read_text() == "x"
    for more in ({"again": True}, {"made_with": "other code"}):
        call(**codes, **more)
    assert (tmp_path / "ran").read_text() == "xxx"
    assert call(minutes=0.1, tests="") == ([], ["tests"])


def ends(pid: int) -> bool:
    for _ in range(1000):  # whoever adopts it has to take leave of it
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    return False


def test_a_part_that_hangs_is_stopped_with_all_that_it_began(tmp_path):
    hangs = f"import os, time; child = os.fork(); open('{tmp_path}/child', 'w').write(str(child or os.getpid()))\n"
    assert run_command(python(hangs + "time.sleep(600)"), tmp_path / "log", 3) == "stopped after 3 s"
    assert ends(int((tmp_path / "child").read_text()))


@pytest.mark.parametrize("visible, number, first", [("2,0", 2, "2"), (None, 8, "0"), ("MIG-1", 1, "MIG-1")])
def test_of_several_gpus_one_is_seen(monkeypatch, capsys, visible, number, first):
    """With two in a process, transformers would split every batch, and TRL refuses to begin."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: number)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    gpu_check.see_one_gpu()
    assert (f"CUDA_VISIBLE_DEVICES={first}" in capsys.readouterr().out) == (number > 1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == first


def test_every_test_on_the_card_is_a_check(monkeypatch, tmp_path):
    cases = [
        '<testcase classname="tests.a" name="right" />',
        '<testcase classname="tests.a" name="wrong"><failure message="assert 1&#10; == 2">trace</failure></testcase>',
        '<testcase classname="tests.b" name="broken"><error message="no fixture">trace</error></testcase>',
        '<testcase classname="tests.b" name="other"><skipped message="not installed" /></testcase>',
    ]

    def run_command(command, log, limit):
        assert any(path.endswith("tests/test_on_gpu.py") for path in command)
        if cases:
            (tmp_path / "tests.xml").write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
        return "ended"

    monkeypatch.setattr(runner, "run_command", run_command)
    found = runner.run_part(TESTS, False, tmp_path, 9, {})
    assert (found.passed, found.skipped) == (1, {"b: other": "not installed"})
    assert found.failed == {"a: wrong": "assert 1 == 2", "b: broken": "no fixture"}
    cases.clear()  # they did not run to their end
    found = runner.run_part(TESTS, False, tmp_path, 9, {})
    assert (found.passed, list(found.failed)) == (0, [PARTS[TESTS].title])


@pytest.mark.parametrize("failed", [{"memory does not grow": "it does"}, {}])
def test_what_a_part_has_found(monkeypatch, tmp_path, failed):
    def run_command(command, log, limit):
        (tmp_path / "steps").mkdir()
        (tmp_path / "steps" / "measured.json").write_text(json.dumps({"numbers": {"a": 2.0}, "failed": failed}))

    monkeypatch.setattr(runner, "run_command", run_command)
    found = runner.run_part(STEPS, True, tmp_path, 9, {})
    assert (found.numbers, found.failed, found.passed) == ({"a": 2.0}, failed, not failed)


def test_why_a_part_does_not_run(monkeypatch):
    assert runner.reason_to_skip(TESTS, True) and runner.reason_to_skip(VLLM, True)
    assert runner.reason_to_skip(TESTS, False) is runner.reason_to_skip(COST, True) is None
    for gib in (15, 24):
        card = SimpleNamespace(total_memory=gib * 2**30)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, card=card: card)
        assert (runner.reason_to_skip(ROLLOUTS, False) is None) == (gib == 24)
        shape = "qwen2.5-1.5b" if gib == 24 else "qwen2.5-0.5b"
        assert shape in runner.command(COST, False, Path("out") / "arms.json")


@pytest.mark.parametrize(
    "line, told", [("echo '580.1, 1980 MHz, 3201 MHz'", "Driver 580.1, clocks up to 1980"), ("exit 9", "")]
)
def test_the_driver_is_asked_about_the_visible_gpu(tmp_path, monkeypatch, line, told):
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\necho "$*" > {tmp_path}/asked\n{line}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert gpu_check.ask_driver().startswith(told)
    assert bool(gpu_check.ask_driver()) == bool(told)
    assert (tmp_path / "asked").read_text().startswith("-i 2 ")


def test_the_page(tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    machine = {"device": "NVIDIA H100 80GB HBM3", "memory": "80", "versions": {"torch": "2.9"}}
    made_with = {"code": "abc", "device": machine["device"], "torch": "2.9"}
    Result(made_with, passed=1, failed={"test_a: test_wrong": "assert 1 == 2"}).write(results, "tests")
    trl = {"generation": 1.0, "scoring": 1.0, "update": 2.0, "phase": [3.0] * 3, "whole": [4.0] * 3}
    ours = {"generation": 0.5, "scoring": 0.1, "update": 1.4, "phase": [2.0, 1.0, 1.5], "whole": [2.5, 1.6, 3.2]}
    arms = {BASELINE: trl, "A packed": ours | {"peak": 7.0}}
    earlier = made_with | {"device": "NVIDIA A100", "torch": "2.8"}
    Result(earlier, skipped={"C": "out of memory"}, seconds={"μ=2": arms}).write(results, "cost")
    where = page.publish(results, tmp_path, machine)
    written = where.read_text()
    assert "test_a: test_wrong" in written and "C (out of memory)" in written
    # The ratios of the phases are 1.5, 3, 2, of the whole steps 1.6, 2.5, 1.25.
    assert "| A packed | 0.5 | 0.1 | 1.4 | 2.5 | 2.00 | 1.60 | 7.00 |" in written
    assert f"| {BASELINE} | 1 | 1 | 2 | 4 | 1.00 | 1.00 | – |" in written
    of_tests, _, of_cost = written.partition(f"## {PARTS[COST].title}")
    assert "NVIDIA A100" in of_cost and "torch 2.8" in of_cost  # not of the card and versions above
    assert of_tests.count("torch 2.9") == 1
    assert set(json.loads(where.with_suffix(".json").read_text())) == {"tests", "cost"}
    page.publish(results, tmp_path, machine)  # once more: listed once
    assert (where.parent / "README.md").read_text().count(f"]({where.name})") == 1


ROWS = [{"peak_memory_gib": 10.0 + step % 2} for step in range(6)]


@pytest.mark.parametrize(
    "held, growth, on_gpu",
    [
        ([50.0, 60.0, 55.0, 60.0, 55.0, 60.5], 0.5, True),
        ([50.0, 60.0, 56.0, 62.0, 58.0, 64.0], 4.0, True),
        ([50.0, 60.0, 56.0, 62.0, 58.0, 64.0], 4.0, False),  # a process's, on a CPU
    ],
)
def test_memory_that_grows_is_a_failure(held, growth, on_gpu):
    found = steps.summarise(ROWS, held, on_gpu)
    assert found["numbers"]["A: growth of the memory between steps, MiB"] == growth
    assert bool(found["failed"]) == (growth > 1 and on_gpu)
    assert found["numbers"].get("A: peak memory of a step, GiB", 11.0) == 11.0


def test_a_card_without_bf16_multiplies_in_fp16_with_weights_in_fp32(monkeypatch):
    assert settings.default_dtype("cpu") == "float32"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    assert settings.default_dtype("cuda") == "float16"
    for dtype, of_weights in (("float16", "float32"), ("bfloat16", "bfloat16"), ("float32", "float32")):
        args = settings.parse(["--shape", "tiny", "--device", "cpu", "--dtype", dtype])
        assert settings.new_model(args, byte_tokenizer()).dtype == getattr(torch, of_weights)
        asked = mixed_precision(getattr(torch, dtype))
        assert asked == {"bf16": dtype == "bfloat16", "fp16": dtype == "float16"}
