"""How a command ends: a reader that leaves early, as `head` does, a terminal of ASCII alone, and `--debug`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from run_record import error_lines

from trl_prorl.cli.ending import command


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "command",
    ["trl_prorl --help", pytest.param("trl_prorl train --help-all", marks=pytest.mark.slow), "trl_prorl tasks list"],
)
def test_a_process_whose_reader_has_left(command):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-m", *command.split()], cwd=ROOT, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert b"BrokenPipe" not in done.stderr and b"Traceback" not in done.stderr, done.stderr
    assert done.returncode in (0, 1, 141)  # 1: rich's own


def ended(*words, **env):
    command = [sys.executable, "-m", "trl_prorl", *words]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("command", "code"), [("train --help beta_old", 0), ("tasks show instructions", 0), ("train tiny/πlain", 2)]
)
def test_a_terminal_of_ascii_alone(command, code):
    done = ended(*command.split(), PYTHONIOENCODING="ascii", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert done.returncode == code, done.stderr
    assert (done.stdout + done.stderr).isascii()


def test_a_full_disk_is_one_line(capsys):
    """`write` names no file, unlike `open`: /dev/full is a disk without space."""

    def fill():
        with open("/dev/full", "w") as disk:
            disk.write("passk.json")

    assert command(lambda argv: fill())([]) == 1
    line = "error: [Errno 28] No space left on device. Free some space, then run the same command again.\n"
    assert capsys.readouterr().err == line


@pytest.mark.parametrize("command", ["train tiny/variantA --beta_odl 1", "tasks show nope", "passk --run nowhere"])
def test_debug_keeps_the_traceback_of_any_error(command):
    plain, debugged = ended(*command.split()), ended(*command.split(), "--debug")
    assert plain.returncode == 2 and "Traceback" not in plain.stderr
    (line,) = error_lines(plain.stderr)
    assert "Traceback" in debugged.stderr
    assert line.removeprefix("error: ") in debugged.stderr
