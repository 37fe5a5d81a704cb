"""A helper process: whose answer it is, its time limit, and its end; `math` and `rg:NAME` ask through it."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trl_prorl.tasks.worker import Worker


ECHO = """
import json, os, sys, time

print('{"ready": true}', flush=True)
for line in sys.stdin:
    answer = {"pid": os.getpid(), "seed": os.environ["PYTHONHASHSEED"], **json.loads(line)}
    if "slow" in answer:
        print('{"half": ', end="", flush=True)
        time.sleep(100)
    print(json.dumps(answer), flush=True)
"""
OWNER = """
import sys
from pathlib import Path
from trl_prorl.tasks.worker import Worker

print(Worker(Path(sys.argv[1]), 60).ask({})["pid"])
"""


@pytest.fixture
def worker(tmp_path):
    (tmp_path / "echo.py").write_text(ECHO)
    return Worker(tmp_path / "echo.py", 60)


def test_a_set_has_the_same_order_in_every_process(worker, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "12345")
    assert worker.ask({})["seed"] == "0"


def test_half_an_answer_is_none_and_does_not_reach_the_next(worker):
    slow = worker.ask({})["pid"]
    assert worker.ask({"slow": 1}, seconds=0.5) is None
    assert not Path(f"/proc/{slow}").exists()
    assert worker.ask({"n": 1})["n"] == 1


def test_a_process_that_was_killed_is_replaced(worker):
    worker.ask({})
    worker._process.kill()
    worker._process.wait()
    assert worker.ask({"n": 1}) is None
    assert worker.ask({"n": 2})["n"] == 2


def test_threads_get_their_own_answers(worker):
    with ThreadPoolExecutor(4) as pool:
        assert [answer["n"] for answer in pool.map(lambda n: worker.ask({"n": n}), range(40))] == [*range(40)]


def test_a_forked_process_has_a_worker_of_its_own(worker):
    ours = worker.ask({})["pid"]
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, b"another" if worker.ask({})["pid"] != ours else b"ours")
        os._exit(0)
    assert os.read(reading, 9) == b"another"
    assert worker.ask({"n": 1})["pid"] == ours


def test_the_worker_ends_with_its_owner(worker):
    command = [sys.executable, "-c", OWNER, str(worker.script)]
    pid = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_a_worker_that_cannot_start_says_why(tmp_path):
    (tmp_path / "broken.py").write_text("import no_such_library\n")
    with pytest.raises(RuntimeError, match="broken.py did not start.*No module named 'no_such_library'"):
        Worker(tmp_path / "broken.py", 1).ask({})
