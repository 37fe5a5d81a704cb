"""How a command ends: a full disk, text of others, and `--debug`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from run_record import error_lines

from trl_prorl.cli.ending import command, print_interrupted
from trl_prorl.cli.terminal import Terminal
from trl_prorl.eval.samples.sampling import progress
from trl_prorl.run.checkpoint import find_best
from trl_prorl.run.folder import LAYOUT, MANIFEST_FILE, RunFolder


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


@pytest.mark.parametrize("command", ["train tiny/variantA --beta_odl 1", "tasks show nope", "passk --run nowhere"])
def test_debug_keeps_the_traceback_of_any_error(command):
    plain, debugged = ended(*command.split()), ended(*command.split(), "--debug")
    (line,) = error_lines(plain.stderr)
    assert plain.returncode == 2 and "Traceback" not in plain.stderr
    assert "Traceback" in debugged.stderr
    assert line.removeprefix("error: ") in debugged.stderr


def test_no_text_of_a_file_controls_the_terminal(tmp_path):
    (tmp_path / "recipe.yaml").write_text('"beta\\e[2J": 1\n')
    done = ended("train", str(tmp_path / "recipe.yaml"))
    assert done.returncode == 2 and "beta" in done.stderr
    assert "\x1b" not in done.stderr


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


def test_no_name_in_a_recipe_or_a_checkpoint_controls_the_terminal(tmp_path, capsys, caplog):
    """The folder that a recipe names; the files and the best checkpoint that a checkpoint of others names."""
    name = "runs/\x1b[2J\u202e"
    terminal = object.__new__(Terminal)
    terminal.trainer = SimpleNamespace(is_world_process_zero=lambda: True, run_dir=name, recipe=())
    terminal.say_next()
    print_interrupted(name)
    bar = progress(1, name)
    bar.close()
    checkpoint = tmp_path / "checkpoint-2"
    checkpoint.mkdir()
    manifest = {"layout": LAYOUT, "resumable": True, "files": {name: {"bytes": 1}}}
    (checkpoint / MANIFEST_FILE).write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="no complete checkpoint"):
        RunFolder(tmp_path).find("True")
    find_best(checkpoint, {"best_model_checkpoint": name, "global_step": 2, "log_history": []})
    shown = [*capsys.readouterr(), *caplog.messages, bar.desc]
    assert [len(shown), sum("runs/" in text for text in shown)] == [5, 5]
    assert all("\x1b" not in text and "\u202e" not in text for text in shown)
