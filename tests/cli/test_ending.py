"""How a command ends: a full disk, text of others, and `--debug`."""

import os
import subprocess
import sys
from pathlib import Path

from run_record import error_lines

from trl_prorl.cli.ending import command


ROOT = Path(__file__).parents[2]


def ended(*words, **env):
    command = [sys.executable, "-m", "trl_prorl", *words]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, check=False)


def test_a_full_disk_is_one_line(capsys):
    """`write` names no file, unlike `open`: /dev/full is a disk without space."""

    def fill():
        with open("/dev/full", "w") as disk:
            disk.write("passk.json")

    assert command(lambda argv: fill())([]) == 1
    assert capsys.readouterr().err == "error: [Errno 28] No space left on device\n"


def test_debug_keeps_the_traceback_of_an_error():
    command = ("passk", "--run", "nowhere")
    plain, debugged = ended(*command), ended(*command, "--debug")
    (line,) = error_lines(plain.stderr)
    assert plain.returncode == 2 and "Traceback" not in plain.stderr
    assert "Traceback" in debugged.stderr
    assert line.removeprefix("error: ") in debugged.stderr


def test_no_logged_value_and_no_traceback_controls_the_terminal():
    """Of a command in a process; an unexpected error still ends it with 1."""
    code = """
import logging
from trl_prorl.cli.ending import command
def main(argv):
    logging.getLogger("trl_prorl.x").warning("column %s", "a\\x1b[2J")
    raise KeyError("file b\\x1b[2J" + chr(0x202e)) from OSError("c\\x1b]0;d\\x07")
command(main)([])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "Traceback" in done.stderr and "KeyError" in done.stderr
    assert "column a" in done.stderr and "file b" in done.stderr
    assert done.stderr.replace("\n", "").isprintable()
