"""The parts of the check, where it can be seen without a GPU: their processes, limits, results, and the next call."""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from trl_prorl.errors import RunError
from trl_prorl.eval import gpu_check
from trl_prorl.eval.gpucheck import page, parts
from trl_prorl.eval.gpucheck.parts import (
    COST,
    LARGE,
    PARTS,
    ROLLOUTS,
    STEPS,
    TESTS,
    VLLM,
    Result,
    run_command,
    run_parts,
)
from trl_prorl.eval.stepcost.settings import BASELINE


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_so(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert gpu_check.main([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: there is no GPU")
    assert "--cpu" in line
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_all_of_it_at_toy_size(capsys, tmp_path, monkeypatch):
    """What CI runs: every part, exit code 0, and a page that names what a GPU would have measured."""
    monkeypatch.chdir(tmp_path)
    status = gpu_check.main(["--cpu", "--out", "out"])
    said = capsys.readouterr().out
    assert status == 0, said
    page = (tmp_path / "out" / "page.md").read_text()
    assert "Not measured" not in page
    assert "Failed" not in page
    for title, _ in (PARTS[TESTS], PARTS[VLLM]):
        assert f"Left out: {title} (" in page
    assert "| A packed |" in page
    assert "| B packed |" in page
    assert "toy size" in page
    assert "| plain: a generation batch, s | – | " in page
    assert "| A: growth of the memory between steps, MiB | – | " in page
    assert {path.name for path in tmp_path.iterdir()} == {"out"}  # nothing among the documents


def python(code):
    return [sys.executable, "-c", code]


@pytest.fixture
def call(tmp_path, monkeypatch):
    """A function that runs parts whose commands are lines of Python: what failed, what was left, what was said."""

    def call(minutes=5.0, again=False, made_with="x", **codes):
        said = []
        monkeypatch.setattr(parts, "reason_to_skip", lambda name, cpu: None)
        monkeypatch.setattr(parts, "command", lambda name, cpu, report: python(codes[name]))
        found = run_parts(codes, True, tmp_path, {"code": made_with}, minutes, again, said.append)
        return *found, said

    return call


MEASURES = "import pathlib; f = pathlib.Path('{}/cost/arms.json'); f.parent.mkdir(exist_ok=True)\n"
MEASURES += "f.write_text('{{\"results\": {{\"a\": {{}}}}}}'); open('{}/ran', 'a').write('x')"


def test_what_passed_is_kept_and_what_failed_runs_again(call, tmp_path):
    codes = {COST: MEASURES.format(tmp_path, tmp_path), TESTS: "raise RuntimeError('a kernel is missing')"}
    failed, left, said = call(**codes)
    why = f"ended with exit code 1: RuntimeError: a kernel is missing, see {tmp_path / 'tests.log'}"
    assert failed == [f"tests: {PARTS[TESTS][0]}: {why}"]
    assert left == []
    assert "1 of 1 checks hold" in said[0]
    assert Result.read(tmp_path, COST).seconds == {"a": {}}
    failed, _, said = call(**codes)
    assert len(failed) == 1
    assert said[0].split(maxsplit=1) == [COST, "passed already"]
    assert (tmp_path / "ran").read_text() == "x"
    for more in ({"again": True}, {"made_with": "other code"}):
        call(**codes, **more)
    assert (tmp_path / "ran").read_text() == "xxx"


def test_without_time_a_part_is_left(call):
    assert call(minutes=0.1, tests="")[:2] == ([], ["tests"])


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
    assert run_command(python(hangs + "time.sleep(600)"), tmp_path / "log", 3) == "was stopped after 3 s"
    assert ends(int((tmp_path / "child").read_text()))


def test_of_several_gpus_one_is_seen(monkeypatch):
    """With two in a process, transformers would split every batch, and TRL refuses to begin."""
    given = (("2,0", 2, "2"), (None, 8, "0"), ("GPU-5e,GPU-7", 2, "GPU-5e"), ("MIG-1", 1, "MIG-1"))
    for visible, number, first in given:
        monkeypatch.setattr(torch.cuda, "device_count", lambda n=number: n)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        said = gpu_check.see_one_gpu()
        assert said is None if number == 1 else f"CUDA_VISIBLE_DEVICES={first}. " in said
        assert os.environ["CUDA_VISIBLE_DEVICES"] == first


REPORT = """<testsuites><testsuite>
<testcase classname="tests.test_a" name="test_right[1]" time="0.1" />
<testcase classname="tests.test_a" name="test_wrong"><failure message="assert 1&#10; == 2">trace</failure></testcase>
<testcase classname="tests.test_b" name="test_broken"><error message="no fixture">trace</error></testcase>
<testcase classname="tests.test_b" name="test_other"><skipped message="deepspeed is not installed" /></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize("report, problem", [(REPORT, "ended"), ("<testsuites />", "ended"), (None, "ended")])
def test_every_test_on_the_card_is_a_check(monkeypatch, tmp_path, report, problem):
    def run_command(command, log, limit):
        assert command[3:6] == ["-q", "-m", "gpu"]
        assert f"--junitxml={tmp_path / 'tests.xml'}" in command
        if report is not None:
            (tmp_path / "tests.xml").write_text(report)
        return problem

    monkeypatch.setattr(parts, "run_command", run_command)
    found = parts.run_part(TESTS, False, tmp_path, 9, {})
    if report is REPORT:
        assert found.passed == 1
        assert found.skipped == {"test_b: test_other": "deepspeed is not installed"}
        assert found.failed == {"test_a: test_wrong": "assert 1 == 2", "test_b: test_broken": "no fixture"}
    else:  # they did not run to their end
        assert found.failed == {PARTS[TESTS][0]: f"ended, see {tmp_path / 'tests.log'}"}


def test_why_a_part_does_not_run(monkeypatch, tmp_path):
    assert parts.reason_to_skip(TESTS, True).startswith("needs a GPU")
    assert parts.reason_to_skip(TESTS, False) is None
    assert parts.reason_to_skip(COST, True) is parts.reason_to_skip(COST, False) is None
    assert parts.reason_to_skip(VLLM, True).startswith("needs a GPU")
    monkeypatch.setattr(parts.importlib.util, "find_spec", lambda name: None if name == "vllm" else name)
    assert parts.reason_to_skip(VLLM, False) == "vllm is not installed"
    gib = {15: "needs a card of 20 GiB; this one has 15", 24: None}
    for size, reason in gib.items():
        card = SimpleNamespace(total_memory=size * 2**30)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, card=card: card)
        for name in (LARGE, ROLLOUTS, STEPS):
            assert parts.reason_to_skip(name, False) == reason
            assert parts.reason_to_skip(name, True) is None
    monkeypatch.setattr(parts, "ROOT", tmp_path)
    assert "a checkout of the project only" in parts.reason_to_skip(TESTS, False)


def test_all_parts_end_within_twenty_minutes():
    assert sum(limit for _, limit in PARTS.values()) <= 20 * 60
    assert PARTS.keys() == parts.REPORTS.keys()
    measured = PARTS.keys() - {TESTS}
    assert measured == parts.ON_CARD.keys() == parts.MODULES.keys() == parts.TOY.keys() | {VLLM}


def test_what_a_part_has_found(monkeypatch, tmp_path):
    """Its numbers, and its checks that do not hold; a command that fails says so, too."""
    monkeypatch.setattr(parts, "reason_to_skip", lambda name, cpu: None)
    content = {"numbers": {"A: a number": 2.0}, "failed": {"memory does not grow": "it does"}}

    def run_command(command, log, limit):
        assert command[1:3] == ["-m", parts.MODULES[STEPS]]
        (tmp_path / "steps").mkdir(exist_ok=True)
        (tmp_path / "steps" / "measured.json").write_text(json.dumps(content))

    monkeypatch.setattr(parts, "run_command", run_command)
    found = parts.run_part(STEPS, True, tmp_path, 9, {})
    assert found.numbers == {"A: a number": 2.0}
    assert found.failed == {"memory does not grow": "it does"}
    assert found.passed == 0
    content["failed"] = {}
    assert parts.run_part(STEPS, True, tmp_path, 9, {}).passed == 1


def test_the_files_with_tests_for_a_gpu():
    found = {path.rpartition("/tests/")[2] for path in parts.marked_files()}
    assert {"test_on_gpu.py", "test_equivalence.py", "resets/test_optimizer_state.py"} <= found
    assert not any(name.startswith(("eval/", "docs/", "study/", "tasks/")) for name in found), found


def test_a_card_without_kernels_is_one_line(monkeypatch):
    def fails(count, device):
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(torch, "ones", fails)
    with pytest.raises(RunError, match="no kernel image"):
        gpu_check.describe_machine(False)


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
    assert written.startswith("# NVIDIA H100 80GB HBM3\n\nWritten by `trl-prorl gpu-check`. 80 GiB; torch 2.9. B ")
    assert written.count("different objective") == 1
    assert "toy size" not in written
    assert "1 of 2 checks hold.\n\n- **Failed: test_a: test_wrong**: assert 1 == 2\n" in written
    # The ratios of the phases are 1.5, 3, 2, of the whole steps 1.6, 2.5, 1.25.
    assert "| A packed | 0.5 | 0.1 | 1.4 | 2.5 | 2.00 | 1.60 | 7.00 |" in written
    assert f"| {BASELINE} | 1 | 1 | 2 | 4 | 1.00 | 1.00 | – |" in written
    assert "- Left out: C (out of memory)" in written
    assert "completions of 512 tokens\n\nNot measured." in written
    assert "Predicted and measured" not in written
    where = page.publish(results, tmp_path, MACHINE)
    assert where == tmp_path / "docs" / "gpu" / "nvidia-h100-80gb-hbm3.md"
    assert where.read_text() == written
    assert set(json.loads(where.with_suffix(".json").read_text())) == {"tests", "cost"}
    page.publish(results, tmp_path, MACHINE)  # once more: listed once
    listed = (where.parent / "README.md").read_text()
    assert listed.count("- [NVIDIA H100 80GB HBM3](nvidia-h100-80gb-hbm3.md)") == 1


def test_what_was_measured_stands_beside_what_was_predicted(results):
    """For this card; another one has no prediction, and none is refuted."""
    numbers = {
        "plain: a token of all rows, ms": 1.0,
        "A: waits of a token": 0.01,
        "A: launches of a token": 9.0,
        "vLLM: a generation batch, s": 2.0,
    }
    Result({}, passed=1, numbers=numbers).write(results, ROLLOUTS)
    arms = {BASELINE: TRL, "A packed": MINE}
    Result({}, passed=1, seconds={"a setting": arms}).write(results, LARGE)
    written = page.page(results, MACHINE)
    assert re.search(r"\| plain: a token of all rows, ms \| at least [\d.]+ \| 1 \| refuted \|", written)
    assert "| A: waits of a token | at most 0.0625 | 0.01 | confirmed |" in written
    assert re.search(r"\| A: launches of a token \| [\d,]+ to [\d,]+ \| 9 \| refuted \|", written)
    assert "| vLLM: a generation batch, s | – | 2 | – |" in written
    assert re.search(r"\| A: update of a step, s \| at least [\d.]+ \| 1.4 \| \w+ \|", written)
    other = page.page(results, MACHINE | {"device": "NVIDIA L4"})
    assert "| plain: a token of all rows, ms | – | 1 | – |" in other


def test_the_page_of_predictions_is_no_card(results, tmp_path):
    docs = tmp_path / "docs" / "gpu"
    docs.mkdir(parents=True)
    (docs / "predictions.md").write_text("# What a card should take\n")
    page.publish(results, tmp_path, MACHINE)
    assert "predictions.md" not in (docs / "README.md").read_text()
