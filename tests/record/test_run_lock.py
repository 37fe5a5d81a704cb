"""One run at a time writes to a folder, and a killed one holds nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run_record import error_lines, modification_times, read_rows

from trl_prorl.run.folder import LOCK_FILE, FolderInUseError, RunFolder


ROOT = Path(__file__).parents[2]
A = {"beta": 0.3, "ref_reset_every": 3, "num_iterations": 2}


def assert_in_use(path):
    with pytest.raises(FolderInUseError, match=str(path)), RunFolder(path).held():
        pass


def test_a_folder_has_one_holder_who_counts_under_each_of_its_names(tmp_path):
    out = tmp_path / "deep" / "out"
    folder = RunFolder(out)
    with folder.held():
        with folder.held():
            pass
        assert_in_use(out)
        link = tmp_path / "link"
        link.symlink_to(out)
        assert_in_use(link)
        (tmp_path / "linked").symlink_to(out.parent)
        assert_in_use(tmp_path / "linked" / "out")
        (out / "file").touch()
    with RunFolder(link).held():
        assert_in_use(out)
    assert [*out.iterdir()] == [out / "file"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "link", "linked"]  # nothing beside it
    assert [*out.parent.iterdir()] == [out]


HOLDER = """
import os, sys, time
from trl_prorl.run.folder import RunFolder
with RunFolder(sys.argv[1]).held():
    if os.fork():
        time.sleep(60)
    print(os.getpid(), flush=True)
    time.sleep(60)
"""


def test_a_killed_process_holds_nothing_though_its_children_live_on(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    assert_in_use(tmp_path)
    process.kill()
    process.wait()
    assert (tmp_path / LOCK_FILE).exists()
    with RunFolder(tmp_path).held():
        assert_in_use(tmp_path)
    os.kill(child, signal.SIGKILL)  # it lived


def test_a_resume_beside_a_live_run_is_refused_and_deletes_nothing(forks, tiny_model, make_trainer, tmp_path, request):
    request.addfinalizer((tmp_path / "go").touch)  # however this ends
    out = tmp_path / "run"
    spec = {
        "run": "training",
        "model": tiny_model,
        "lora": True,
        "prompts": 4,
        "log": str(tmp_path / "log"),
        "keys": A | {"max_steps": 3},
        "out": str(out),
    }
    process = forks.start(**spec, wait_in_save=[2, str(tmp_path)])
    while not (tmp_path / "waits").exists():
        os.kill(process, 0)  # it lives
        time.sleep(0.01)
    assert (out / "_writing-2").is_dir()
    before = modification_times(out)
    for resume in (None, True, "auto"):
        with pytest.raises(FolderInUseError):
            make_trainer(**A, output_dir=str(out), overwrite=True).train(resume_from_checkpoint=resume)
    assert modification_times(out) == before
    (tmp_path / "go").touch()
    assert forks.status() == 0, (tmp_path / "log").read_text()[-3000:]
    assert [path.name for path in sorted(out.glob("*checkpoint-*"))] == [f"checkpoint-{step}" for step in (1, 2, 3)]
    assert not list(tmp_path.rglob(LOCK_FILE))
    assert [row["step"] for row in read_rows(out)] == [1, 2, 3]


def test_two_ranks_are_one_run_and_say_one_line(forks, tiny_model, tmp_path):
    arguments = ["--model_name_or_path", tiny_model, "--output_dir", str(tmp_path / "run"), "--train_rows", "64"]
    log = tmp_path / "log"
    recipe = ROOT / "recipes" / "grpo_variantA.py"
    with RunFolder(tmp_path / "run").held():
        forks.start(run=str(recipe), argv=arguments, log=str(log), ranks=2, patient=True)
        assert forks.status() == 2
    (line,) = error_lines(log.read_text())
    assert "in use" in line
    assert "Traceback" not in log.read_text() and "Loading weights" not in log.read_text()
