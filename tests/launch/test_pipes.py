"""A reader that closes the pipe early, as `head` does, ends a command without a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from run_record import write_run

from trl_prorl.pipes import reader_may_leave


ROOT = Path(__file__).parents[2]
INTO_A_CLOSED_PIPE = """
import os, runpy, sys
reading, writing = os.pipe()
os.close(reading)
os.dup2(writing, 1)
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    "command", ["trl_prorl --help", "trl_prorl train", "trl_prorl train --help-all", "trl_prorl tasks list"]
)
def test_a_process_whose_reader_has_left(command):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-m", *command.split()], cwd=ROOT, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert done.stderr == b""
    assert done.returncode in (0, 1, 141)  # 1: rich's own


OTHERS = [
    "trl_prorl env",
    "trl_prorl tasks show sums",
    "trl_prorl passk --help",
    "trl_prorl report --runs run",
    "trl_prorl smollm2 --help",
    "eval.compare --runs run other",
    "tasks list",
    "trl_prorl.train --help",
]


@pytest.mark.parametrize("command", OTHERS)
def test_a_command_whose_reader_has_left(forks, tmp_path, command):
    (tmp_path / "into.py").write_text(INTO_A_CLOSED_PIPE)
    for name in ("run", "other"):
        write_run(tmp_path / name, {"output_dir": name, "beta": 0.1}, [{"step": 1, "reward": 0.5}])
    status, written = forks.run(tmp_path / "into.py", *command.split(), cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert "Traceback" not in written and "BrokenPipe" not in written and status in (0, 1, 2, 141), written


def test_another_pipe_that_breaks_is_an_error():
    @reader_may_leave()
    def main():
        raise BrokenPipeError("of a worker")

    with pytest.raises(BrokenPipeError, match="of a worker"):
        main()
