"""Parts in processes of their own: limits, failures, and the next call."""

import dataclasses
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from eval.gpucheck import runner
from eval.gpucheck.parts import CPU, PARTS, Part, Result, Table
from eval.gpucheck.runner import last_words, run_all, run_part


def fine(size, folder):
    result = Result(tables=[Table("Seconds", ["arm", "s"], [["A", 0.1]])], skipped={"other": "not installed"})
    result.check("sum", 1 + 1 == 2, "2, by hand 2")
    result.facts["left"] = size.ends - time.monotonic()
    with open(folder.with_name("ran"), "a") as file:
        file.write("x")
    return result


def wrong(size, folder):
    result = Result()
    result.check("difference", False, "1, by hand 2")
    return result


def breaks(size, folder):
    raise RuntimeError("a kernel is missing")


def hangs(size, folder):
    print("it begins", flush=True)
    if (child := os.fork()) == 0:
        time.sleep(600)
    (folder / "child").write_text(str(child))
    time.sleep(600)


def sleeps(size, folder):
    (folder / "pid").write_text(str(os.getpid()))
    time.sleep(600)


def begins_another(size, folder):
    run_part(Part("inner", "Inner", sleeps, 400), size, folder, {}, 400)


def ends(pid: int) -> bool:
    for _ in range(1000):  # whoever adopts it has to take leave of it
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    return False


@pytest.fixture
def call(tmp_path, monkeypatch):
    """A function that runs parts, in place of the real ones: the outcome, and the lines."""
    for part in (
        Part("fine", "Fine", fine, 100),
        Part("wrong", "Wrong", wrong, 100),
        Part("breaks", "B", breaks, 100),
    ):
        monkeypatch.setitem(PARTS, part.name, part)

    def call(*names, minutes=5.0, again=False):
        said = []
        return run_all(CPU, tmp_path, names, minutes, again, said.append), said

    return call


def test_what_passed_is_kept_and_what_failed_is_named_and_runs_again(call, tmp_path):
    outcome, said = call("breaks", "wrong", "fine")
    assert outcome.failed[1:] == ["wrong: difference"] and outcome.left == []
    assert outcome.failed[0].startswith("breaks: ended with exit code 1: RuntimeError: a kernel is missing, see ")
    assert "FAILED: ended with exit code 1" in said[0] and "0 of 1 checks hold; FAILED: difference" in said[1]
    assert "1 of 1 checks hold; 1 tables; left out: other" in said[2]
    outcome, said = call("wrong", "fine")
    assert outcome.failed == ["wrong: difference"] and said[1].split(maxsplit=1) == ["fine", "passed already"]
    ran = tmp_path / "ran"
    assert ran.read_text() == "x"
    call("fine", again=True)
    assert ran.read_text() == "xx"


def test_a_result_of_other_code_is_none(call, tmp_path, monkeypatch):
    call("fine")
    made_with = Result.read(tmp_path, "fine").made_with
    assert made_with["code"] == runner.code() and "torch" in made_with
    monkeypatch.setattr(runner, "code", lambda: "other")
    call()
    assert not (tmp_path / "fine.json").exists()


def test_a_part_begins_with_an_empty_folder(call, tmp_path):
    """What an earlier call has left could pass for a result of this one."""
    (tmp_path / "fine").mkdir()
    (tmp_path / "fine" / "said.json").write_text("{}")
    call("fine")
    assert not list((tmp_path / "fine").iterdir())


def test_a_part_is_told_to_end_before_its_limit(call, tmp_path):
    """So that it keeps what it has measured."""
    call("fine", minutes=100 / 60)
    assert 55 < Result.read(tmp_path, "fine").facts["left"] < 80


def test_without_time_a_part_is_left(call):
    assert call("fine", minutes=0.1)[0] == ([], ["fine"])


def test_without_a_device_nothing_is_said_to_have_lacked_time(call, monkeypatch):
    monkeypatch.setattr(runner, "MACHINE", Part("machine", "The device", breaks, 100))
    outcome, _ = call("fine")
    assert outcome.left == [] and "RuntimeError: a kernel is missing" in outcome.failed[0]
    assert outcome.failed[0].endswith("Nothing was measured")


def test_a_part_that_hangs_is_stopped_with_all_that_it_began(tmp_path):
    problem = run_part(Part("hangs", "Hangs", hangs, 100), CPU, tmp_path, {}, 3)
    assert problem.startswith("was stopped after 3 s") and "it begins" in (tmp_path / "hangs.log").read_text()
    assert ends(int((tmp_path / "hangs" / "child").read_text()))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's end")
def test_what_is_begun_ends_with_a_process_that_is_killed(tmp_path):
    """Otherwise it would go on, on the same GPU as the next call."""
    run_part(Part("outer", "Outer", begins_another, 100), CPU, tmp_path, {}, 3)
    assert ends(int((tmp_path / "outer" / "inner" / "pid").read_text()))


@pytest.mark.slow
def test_on_a_card_the_process_is_no_copy(tmp_path, monkeypatch):
    """Because a copy cannot use CUDA."""
    monkeypatch.setattr(runner.torch, "manual_seed", None)  # a copy of this process would fail
    size = dataclasses.replace(CPU, device="cuda")
    assert run_part(Part("x", "X", "cost:cost_large", 400), size, tmp_path, {"code": "x"}, 400) is None
    assert Result.read(tmp_path, "x").made_with == {"code": "x"}


CUDA = """Traceback (most recent call last):
  File "machine.py", line 41, in machine
torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device
Search for `cudaErrorNoKernelImageForDevice' in https://docs.nvidia.com/cuda for more information.
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""


@pytest.mark.parametrize(
    "log, words",
    [
        (CUDA, "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device"),
        ("first\nRuntimeError: one\nValueError: the second, raised while it was handled\n", "ValueError: the second"),
        ("2 failed, 8 passed in 3.14s\n", "2 failed, 8 passed"),
        ("", ""),
    ],
)
def test_a_log_s_last_words_name_the_error(tmp_path, log, words):
    (tmp_path / "log").write_text(log)
    assert last_words(tmp_path / "log").startswith(words) and last_words(tmp_path / "none") == ""


def test_no_part_takes_more_than_eight_minutes():
    assert all(part.limit <= 480 and callable(part.function()) for part in PARTS.values())
    with pytest.raises(ValueError, match="limit=481 of the part x: at most 480"):
        Part("x", "X", fine, limit=481)
