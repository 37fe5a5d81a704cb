"""What the parts compute, where it can be seen without a GPU."""

import dataclasses
import os
from types import SimpleNamespace

import pytest
import torch

from eval import gpu_check
from eval.gpucheck import cost, marked_tests, runner
from eval.gpucheck.parts import CARD, CPU, Result
from eval.stepcost.settings import ARMS, BASELINE


FAKE_CARD = dataclasses.replace(CPU, device="cuda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_so(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert gpu_check.main([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: there is no GPU") and "--cpu" in line and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_all_of_it_at_toy_size(capsys, tmp_path, monkeypatch):
    """What CI runs: every part, exit code 0, and a page that names what a GPU would have measured."""
    monkeypatch.chdir(tmp_path)
    status = gpu_check.main(["--cpu", "--out", "out"])
    said = capsys.readouterr().out
    assert status == 0, said
    page = (tmp_path / "out" / "page.md").read_text()
    assert "Not measured" not in page and "Failed" not in page
    for left_out in ("the tests marked gpu", "the larger model"):
        assert f"Left out: {left_out} (" in page, left_out
    for arm in ARMS:
        assert f"| {arm} |" in page, arm
    assert {path.name for path in tmp_path.iterdir()} == {"out"}  # nothing among the documents


def test_a_row_of_the_cost_by_hand():
    """Three rounds; 100, 200 and 300 tokens; TRL's update phase takes 3, the arm's 2, 1 and 1.5 seconds."""
    trl = {"generation": 1.0, "scoring": 1.0, "update": 2.0, "phase": [3.0] * 3, "whole": [4.0] * 3}
    mine = {"generation": 0.5, "scoring": 0.1, "update": 1.4, "phase": [2.0, 1.0, 1.5], "whole": [2.5, 1.6, 3.2]}
    found = cost.row({BASELINE: trl, "A packed": mine | {"peak": 7.0}}, "A packed", [100, 200, 300])
    # The ratios of the phases are 1.5, 3, 2, of the whole steps 1.6, 2.5, 1.25; tokens a second 40, 125, 93.75.
    assert found == ["A packed", 0.5, 0.1, 1.4, 2.5, 2.0, 1.6, 93.75, 7.0]
    assert cost.row({"A packed": mine}, "A packed", [100, 200, 300])[5:7] == [None, None]
    assert len(found) == len(cost.COLUMNS)


def test_what_does_not_fit_or_finds_no_time_is_left_out_by_name(monkeypatch):
    """What a slow or small card cannot do costs it nothing that it has measured."""

    def no_room(arms, *args, **kwargs):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(cost, "measure", no_room)
    for size, reason in ((CPU, "out of memory"), (dataclasses.replace(CPU, ends=0.0), "no time was left")):
        found = cost.cost(size, None)
        assert not found.tables[0].rows and len(found.skipped) == len(ARMS)
        assert found.skipped["tiny, 1× gold answers, μ=2, A packed"].startswith(reason)


def test_of_several_gpus_one_is_seen(monkeypatch):
    """With two in a process, transformers would split every batch, and TRL refuses to begin."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for visible, number, first in (("2,0", 2, "2"), (None, 8, "0"), ("GPU-5e,GPU-77", 2, "GPU-5e")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda n=number: n)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES") if visible is None else monkeypatch.setenv(
            "CUDA_VISIBLE_DEVICES", visible
        )
        assert f"CUDA_VISIBLE_DEVICES={first}. " in runner.see_one_gpu()
        assert os.environ["CUDA_VISIBLE_DEVICES"] == first
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1")
    assert runner.see_one_gpu() is None and os.environ["CUDA_VISIBLE_DEVICES"] == "MIG-1"


@pytest.mark.parametrize("major, right", [(7, False), (8, True)])
def test_a_card_that_emulates_bf16_is_named(monkeypatch, major, right):
    card, ones = SimpleNamespace(name="a card", total_memory=2**34, major=major), torch.ones
    for name, value in (
        ("is_available", lambda: True),
        ("current_device", lambda: 0),
        ("get_device_properties", lambda device=None: card),
        ("_check_bf16_tensor_supported", lambda device: True),
    ):
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch, "ones", lambda count, device: ones(count))
    found = runner.machine(CARD, None)
    assert (found.failed == []) == right and (found.facts["device"], found.facts["memory_gib"]) == ("a card", 16.0)


REPORT = """<testsuites><testsuite>
<testcase classname="tests.test_a" name="test_right[1]" time="0.1" />
<testcase classname="tests.test_a" name="test_wrong"><failure message="assert 1&#10; == 2">trace</failure></testcase>
<testcase classname="tests.test_b" name="test_broken"><error message="no fixture">trace</error></testcase>
<testcase classname="tests.test_b" name="test_other"><skipped message="deepspeed is not installed" /></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def pytest_ends(monkeypatch, tmp_path):
    """A function that runs the part with a report and an exit status of pytest's."""

    def ends(report, status):
        def run(command, cwd, check):
            if report is not None:
                (tmp_path / "tests.xml").write_text(report)
            assert f"--junitxml={tmp_path / 'tests.xml'}" in command and command[3:6] == ["-q", "-m", "gpu"]
            return SimpleNamespace(returncode=status)

        monkeypatch.setattr(marked_tests.subprocess, "run", run)
        return marked_tests.marked_tests(FAKE_CARD, tmp_path)

    return ends


def test_every_test_on_the_card_is_a_check(pytest_ends):
    found = pytest_ends(REPORT, 1)
    assert [(check.name, check.passed, check.found) for check in found.checks] == [
        ("test_a: test_right[1]", True, "passed"),
        ("test_a: test_wrong", False, "assert 1 == 2"),
        ("test_b: test_broken", False, "no fixture"),
    ]
    assert found.skipped == {"test_b: test_other": "deepspeed is not installed"}


@pytest.mark.parametrize("report", [None, "<testsuites />", REPORT.replace("failure", "x").replace("error", "x")])
def test_tests_that_did_not_run_to_their_end_are_a_failure(pytest_ends, report):
    (failed,) = pytest_ends(report, 3).failed
    assert failed.name == "the tests marked gpu" and "exit code 3" in failed.found


def test_why_the_tests_do_not_run(monkeypatch, tmp_path):
    assert marked_tests.why_not(CPU).startswith("needs a GPU") and marked_tests.why_not(FAKE_CARD) is None
    monkeypatch.setattr(marked_tests, "ROOT", tmp_path)
    assert "a checkout of the project only" in marked_tests.why_not(FAKE_CARD)
    assert marked_tests.marked_tests(FAKE_CARD, tmp_path) == Result(
        skipped={"the tests marked gpu": marked_tests.why_not(FAKE_CARD)}
    )


def test_the_files_with_tests_for_a_gpu():
    found = {path.rpartition("/tests/")[2] for path in marked_tests.marked_files()}
    assert {"test_on_gpu.py", "test_equivalence.py", "test_optimizer_state.py"} <= found
    assert not any("/" in name for name in found), found
