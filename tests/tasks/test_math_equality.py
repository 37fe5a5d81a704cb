"""math-verify in its own process: verdicts, time limit, and what must not stop it."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tasks.math_equality
from tasks.math_equality import WORKER, equal, equal_number, is_integer
from tasks.worker import Worker


SCRIPT = Path(tasks.math_equality.__file__).with_name("isolated") / "math_worker.py"


@pytest.mark.parametrize(
    "gold, answer, same",
    [
        ("42", "40+2", True),
        ("2", "1.9999999999", False),
        ("x<5", "(-\\infty,5)", True),
        ("(-\\infty,5)", "x<5", False),
        ("1000000007", "1000000008", False),
        ("", "", False),
        ("5", "", False),
    ],
)
def test_equal(gold, answer, same):
    """What math-verify does where the task `math` does not ask it; the rest: test_math.py."""
    assert equal(gold, answer) is same


@pytest.mark.parametrize(
    "number, integer", [("42", True), ("-4.00", True), ("0.5", False), ("\\frac12", False), ("", False)]
)
def test_is_integer(number, integer):
    assert is_integer(number) is integer


def test_what_takes_too_long_is_no_answer_and_the_next_question_is_answered():
    worker = Worker(SCRIPT, seconds=1.5)
    assert worker.ask({"gold": "5", "answer": "5"}, seconds=60) == {"equal": True}
    process = worker._process
    # One integer power, which no signal interrupts.
    assert worker.ask({"gold": "5", "answer": "9^{9^{9^{9}}}"}) is None
    assert process.poll() is not None
    assert worker.ask({"gold": "5", "answer": "\\frac{10}{2}"}, seconds=60) == {"equal": True}


def test_a_process_that_was_killed_is_replaced():
    equal("1", "1")
    WORKER._process.kill()
    WORKER._process.wait()
    assert not equal("1", "2")
    assert equal("1", "\\frac{2}{2}")


def test_threads_get_their_own_answers():
    pairs = [(str(i / 8), f"\\frac{{{i}}}{{8}}" if i % 2 else f"\\frac{{{i + 1}}}{{8}}") for i in range(40)]
    verdicts = {}

    def work(part):
        for i in part:
            verdicts[i] = equal(*pairs[i])

    threads = [threading.Thread(target=work, args=(range(k, 40, 4),)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == {i: i % 2 == 1 for i in range(40)}


def test_a_forked_process_has_a_worker_of_its_own():
    assert equal("1", "1")
    ours = WORKER._process.pid
    reading, writing = os.pipe()
    if os.fork() == 0:
        verdict = equal("0.5", "\\frac{1}{2}") and WORKER._process.pid != ours
        os.write(writing, b"yes" if verdict else b"no")
        os._exit(0)
    assert os.read(reading, 3) == b"yes"
    assert equal("1", "1") and WORKER._process.pid == ours


def test_the_worker_ends_with_its_owner(tmp_path):
    script = "from tasks.math_equality import WORKER, equal\nequal('1', '1')\nprint(WORKER._process.pid)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    pid, deadline = int(out), time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_long_texts_are_not_even_asked(monkeypatch):
    monkeypatch.setattr(WORKER, "ask", lambda request: pytest.fail("asked"))
    assert equal("1", "x" * 1001) is False


def test_half_an_answer_is_none_and_does_not_reach_the_next(tmp_path):
    (tmp_path / "halting.py").write_text(
        "import sys, time\nprint('{}', flush=True)\nfor line in sys.stdin:\n"
        "    print('{\"half\": ' if 'slow' in line else '{\"whole\": 1}\\n', end='', flush=True)\n"
        "    time.sleep(100 if 'slow' in line else 0)\n"
    )
    worker = Worker(tmp_path / "halting.py", 60)
    assert worker.ask({"be": "quick"}) == {"whole": 1}
    assert worker.ask({"be": "slow"}, seconds=0.5) is None
    assert worker.ask({"be": "quick"}) == {"whole": 1}


def test_a_worker_that_cannot_start_says_why(tmp_path):
    (tmp_path / "broken.py").write_text("import no_such_library\n")
    with pytest.raises(RuntimeError, match="broken.py did not start.*No module named 'no_such_library'"):
        Worker(tmp_path / "broken.py", 1).ask({})


texts = st.one_of(st.text(max_size=40), st.text("0123456789\\frac{}()^_+-*/=,. xyz", max_size=30))


@settings(deadline=None, max_examples=100, derandomize=True)
@given(texts, texts)
def test_it_never_raises(gold, answer):
    assert type(equal(gold, answer)) is bool
    assert type(equal_number("42", answer)) is bool


@pytest.mark.parametrize("text", ["\ud800", "\x00", "{" * 900, "\\frac" * 150, "x" * 10**6, "\n{}\n", '"}'])
def test_nasty_texts(text, monkeypatch):
    monkeypatch.setattr(WORKER, "seconds", 1.0)
    assert equal(text, "1") is False
    assert equal("1", text) is False
    monkeypatch.undo()
    assert equal("0.5", "\\frac12")
