"""One run at a time writes to a folder, and a killed one holds nothing."""

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run_record import error_lines, modification_times, read_rows

from trl_prorl import train
from trl_prorl.run import folder as run_folder
from trl_prorl.run.folder import LOCK_FILE, FolderInUseError, FolderLock, check_free


ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "tiny" / "variantA.yaml"
A = {"beta": 0.3, "ref_reset_every": 3, "num_iterations": 2}


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(run_folder, "SECONDS", 0)


def test_a_folder_has_one_holder_who_counts(tmp_path, quick):
    out = tmp_path / "deep" / "out"
    lock = FolderLock(out)
    other = FolderLock(out)
    lock.hold()
    lock.hold()
    lock.release()
    with pytest.raises(FolderInUseError, match=f"process {os.getpid()} on {socket.gethostname()}, since 20"):
        other.hold()
    with pytest.raises(FolderInUseError, match=f"'{out}' is in use by another run: process {os.getpid()} on "):
        check_free(out)
    check_free(tmp_path / "free")
    (out / "file").touch()
    lock.release()
    check_free(out)
    other.hold()
    other.release()
    assert [*out.iterdir()] == [out / "file"]


HOLDER = """
import os, sys, time
from trl_prorl.run.folder import FolderLock
lock = FolderLock(sys.argv[1])
lock.hold()
if (child := os.fork()):
    time.sleep(60)
lock.release()  # of the parent's it leaves all
print(os.getpid(), flush=True)
time.sleep(60)
"""


def test_a_killed_process_holds_nothing_though_its_children_live_on(tmp_path, quick):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    with pytest.raises(FolderInUseError, match=f"process {process.pid} "):
        FolderLock(tmp_path).hold()
    process.kill()
    process.wait()
    assert (tmp_path / LOCK_FILE).exists()
    lock = FolderLock(tmp_path)
    lock.hold()
    assert (tmp_path / LOCK_FILE).read_text().startswith(f"process {os.getpid()} on ")
    lock.release()
    os.kill(child, signal.SIGKILL)  # it lived


WITHOUT_FCNTL = """
import os, sys
sys.modules["fcntl"] = None
from trl_prorl.run.folder import FolderInUseError, FolderLock, RunFolder
folder = RunFolder(sys.argv[1])
folder.check_usable()
lock = FolderLock(sys.argv[1])
for _ in range(2):
    lock.hold()
    folder.check_usable()  # as a recipe's trainer does
    try:
        FolderLock(sys.argv[1]).hold()
        sys.exit("two holders")
    except FolderInUseError:
        lock.release()
lock.hold()
os.kill(os.getpid(), 9)
"""


def test_where_the_kernel_has_no_locks_a_folder_has_one_holder_and_a_killed_run_goes_on(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT_FCNTL, str(tmp_path)]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert (tmp_path / LOCK_FILE).exists()


def test_a_disk_without_locks_is_named(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(OSError, match=f"{tmp_path}' cannot be locked .*No locks available"):
        FolderLock(tmp_path).hold()


def test_a_resume_beside_a_live_run_is_refused_and_deletes_nothing(
    forks, tiny_model, make_trainer, tmp_path, quick, monkeypatch, capsys, request
):
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
        with pytest.raises(FolderInUseError, match=f"process {process} on "):
            make_trainer(**A, output_dir=str(out), overwrite=True).train(resume_from_checkpoint=resume)

    monkeypatch.setattr(train, "find_model", lambda *args: pytest.fail("a model was loaded"))
    with pytest.raises(SystemExit) as end:
        train.main(RECIPE, ["--config", str(RECIPE), "--output_dir", str(out), "--resume_from_checkpoint", "True"])
    (line,) = error_lines(capsys.readouterr().err)
    assert end.value.code == 2
    assert f"is in use by another run: process {process} on {socket.gethostname()}" in line
    assert modification_times(out) == before
    (tmp_path / "go").touch()
    assert forks.status() == 0, (tmp_path / "log").read_text()[-3000:]
    assert [path.name for path in sorted(out.glob("*checkpoint-*"))] == [f"checkpoint-{step}" for step in (1, 2, 3)]
    assert not list(tmp_path.rglob(LOCK_FILE))
    assert [row["step"] for row in read_rows(out)] == [1, 2, 3]


def test_the_lock_ends_with_an_error_and_covers_the_final_save(run, make_trainer, quick):
    with pytest.raises(ValueError, match="by zero"):
        run(reward=lambda completions, **columns: [1 / 0])
    trainer = make_trainer(max_steps=1)
    saves = trainer.save_model

    def save(*args, **kwargs):
        with pytest.raises(FolderInUseError):
            check_free(trainer.args.output_dir)
        saves(*args, **kwargs)

    trainer.save_model = save
    train.train(trainer, None)
    check_free(trainer.args.output_dir)
    assert Path(trainer.args.output_dir, "adapter_config.json").exists()


def test_two_ranks_are_one_run_and_say_one_line(forks, tiny_model, tmp_path):
    lock = FolderLock(tmp_path / "run")
    lock.hold()
    arguments = ["--model_name_or_path", tiny_model, "--output_dir", str(tmp_path / "run"), "--train_rows", "64"]
    log = tmp_path / "log"
    recipe = ROOT / "recipes" / "grpo_variantA.py"
    forks.start(run=str(recipe), argv=arguments, log=str(log), ranks=2, patient=True)
    assert forks.status() == 2
    lock.release()
    (line,) = error_lines(log.read_text())
    assert f"is in use by another run: process {os.getpid()} on " in line
    assert "Traceback" not in log.read_text()
