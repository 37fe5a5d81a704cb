"""
`python -m study run` as a real process on the embedded model: killed in the middle of a run, interrupted, and going on
from a fresh clone; and what it refuses, without a process of its own.
"""

import csv
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from study.__main__ import KEPT, main
from study.tables import BASES, CURVES, CURVES4, FOLDER, PROMPTS, RUNS, read_tables
from trl_prorl.eval.command import command
from trl_prorl.record.folder_lock import holder


pytestmark = pytest.mark.slow  # two minutes of trainings

RUNNING = ("--jobs", "1")
# As `python -m study`, but its trainings do not yield to other tests, which would leave them no time.
STUDY = """
import runpy
import study.runner
study.runner.NICE, study.runner.LOOK_EVERY = 0, 0.1
runpy.run_module("study", run_name="__main__", alter_sys=True)
"""


def start(root, *arguments):
    env = {**os.environ, "PYTHONPATH": str(root), "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    # A shell's background jobs, and so the tests that run in one, begin with SIGINT ignored.
    terminal = {"start_new_session": True, "preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    return subprocess.Popen([sys.executable, "-c", STUDY, *arguments], cwd=root, env=env, **streams, **terminal)


def finish(process):
    written, _ = process.communicate(timeout=600)
    return process.returncode, written


def rows(root):
    path = root / FOLDER / RUNS
    with open(path, newline="") if path.exists() else open(os.devnull) as file:
        return list(csv.DictReader(file))


def wait_for(what, process):
    while not what():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)


def training(root, arm):
    """Whether a process trains this arm: it holds the lock of the run's folder."""
    return any(holder(folder) for folder in root.glob(f"runs/study/*/*/{arm}-seed1-3"))


def at_work(root):
    """Whether a process of this checkout trains, from its first import on."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            command = path.read_bytes()
            if b"grpo_variantA.py" in command and str(root).encode() in command:
                return True
    return False


@pytest.fixture(scope="module")
def story(checkout, tmp_path_factory, git):
    """Everything that happens, with what was seen on the way."""
    seen = {"code": git(checkout, "rev-parse", "HEAD")}
    process = start(checkout, "run", *RUNNING)
    wait_for(lambda: training(checkout, "plain"), process)
    seen["refused"] = finish(start(checkout, "run", *RUNNING))
    wait_for(lambda: training(checkout, "A"), process)
    process.kill()
    seen["killed"], _ = finish(process)
    while training(checkout, "A"):  # if nothing ended it, until its three steps are done
        time.sleep(0.05)
    seen["models"] = [path.parent.name for path in checkout.glob("runs/study/*/*/*/adapter_model.safetensors")]
    seen["first"] = {path.name: path.read_bytes() for path in (checkout / FOLDER).iterdir()}
    git(checkout, "commit", "--quiet", "--allow-empty", "-m", "The project moves on")

    fresh = tmp_path_factory.mktemp("fresh") / "clone"
    git(checkout, "clone", "--quiet", str(checkout), str(fresh))
    for key in ("user.name", "user.email"):
        git(fresh, "config", key, "study@example.org")
    (fresh / "changed_by_hand").write_text("staged, and nobody else's business")
    git(fresh, "add", "changed_by_hand")
    process = start(fresh, "run", *RUNNING)
    wait_for(lambda: at_work(fresh), process)
    process.send_signal(signal.SIGINT)
    seen["interrupted"] = finish(process)
    seen["after interrupt"] = at_work(fresh)
    seen["second"] = finish(start(fresh, "run", *RUNNING))
    return fresh, seen


@pytest.fixture
def run_study(story, capfd):
    """A function that runs a command in the fresh clone, where nothing is left to train: exit code, what it wrote."""

    def run(*arguments):
        code = command(main, kept=KEPT)([*arguments, "--root", str(story[0])])
        return code, "".join(capfd.readouterr())

    return run


def test_a_second_runner_is_refused(story):
    _, seen = story
    code, written = seen["refused"]
    assert code == 2
    assert written.startswith("error: the study runs already: process ")
    assert len(written.strip().splitlines()) == 1


def test_a_kill_leaves_nothing_running_and_the_finished_run_in_the_tables(story):
    _, seen = story
    assert seen["killed"] == -signal.SIGKILL
    assert seen["models"] == ["plain-seed1-3"]
    assert [line.split(",")[1] for line in seen["first"][RUNS].decode().splitlines()[1:]] == ["plain"]


def test_a_fresh_clone_goes_on_and_trains_nothing_twice(story, run_study):
    fresh, seen = story
    code, written = seen["second"]
    assert code == 0, written
    assert "1 of 2 runs are in study/tables" in written
    assert "plain" not in written
    before = seen["first"][RUNS].decode().splitlines()
    after = (fresh / FOLDER / RUNS).read_text().splitlines()
    assert before[1] in after
    assert [row["arm"] for row in rows(fresh)] == ["A", "plain"]
    assert (fresh / FOLDER / BASES).read_bytes() == seen["first"][BASES]  # measured once
    tables = read_tables(fresh)
    assert tables.curves.groupby(level="arm").size().to_dict() == {"A": 3, "plain": 3}
    assert tables.prompts.groupby(level="arm").size().to_dict() == {"A": 24, "base": 24, "plain": 24}
    a, plain = rows(fresh)
    assert a["base_pass@1"] == plain["base_pass@1"]
    assert a["base_hash"] == plain["base_hash"]
    # The reward is the verdict here, so gold, proxy and pass@1 are one number.
    assert all(row["block"] == "core" and row["gold"] == row["proxy"] == row["pass@1"] for row in (a, plain))
    assert (tables.curves["gold"] == tables.curves["reward"]).all()
    assert (a["ref_forward_calls"], plain["ref_forward_calls"], a["resets"]) == ("2", "0", "1")
    code, written = run_study("run", *RUNNING)
    assert code == 0
    assert "2 of 2 runs are in study/tables" in written
    assert "left: nothing" in written


def test_the_code_stays_frozen(story):
    fresh, seen = story
    assert {row["commit"] for row in rows(fresh)} == {seen["code"]}
    assert (fresh / FOLDER / "frozen_at").read_text().strip() == seen["code"]


def test_each_run_is_committed_and_nothing_else_is(story, git):
    fresh, _ = story
    first, second, *_ = git(fresh, "log", "--format=%s").splitlines()
    assert first.startswith("Study: reverse_digits, A, base seed 0, seed 1, 3 steps: pass@1 0.")
    assert second == "The project moves on"
    committed = git(fresh, "show", "--name-only", "--format=", "HEAD").splitlines()
    assert sorted(committed) == sorted(str(FOLDER / name) for name in (RUNS, CURVES, PROMPTS))
    assert "A  changed_by_hand" in git(fresh, "status", "--porcelain").splitlines()


def test_tables_in_a_checkout_without_the_study_s_code(story, checkout, git, tmp_path):
    """A clone whose newest commit has of the study the tables alone, and a worktree of its history that fills them."""
    _, seen = story
    moved_on = tmp_path / "clone"
    git(checkout, "clone", "--quiet", str(checkout), str(moved_on))
    code = ("trl_prorl", "eval", "tasks", "study/*.py", "study/recipes", "study/bases")
    git(moved_on, "rm", "-r", "--quiet", *code, str(FOLDER / CURVES))
    for key in ("user.name", "user.email"):
        git(moved_on, "config", key, "study@example.org")
    git(moved_on, "commit", "--quiet", "-m", "The study's code leaves")
    assert not (moved_on / "study" / "bases").exists()
    frozen = tmp_path / "frozen"
    git(moved_on, "worktree", "add", "--quiet", "--detach", str(frozen), seen["code"])
    code, written = finish(start(frozen, "run", *RUNNING, "--tables", str(moved_on / FOLDER)))
    assert code == 0, written
    assert [row["arm"] for row in rows(moved_on)] == ["A", "plain"]
    assert not (moved_on / FOLDER / CURVES).exists()
    assert git(moved_on, "status", "--porcelain") == ""
    assert git(moved_on, "log", "-1", "--format=%s").startswith(
        "Study: reverse_digits, A, base seed 0, seed 1, 3 steps"
    )
    committed = git(moved_on, "show", "--name-only", "--format=", "HEAD").splitlines()
    assert sorted(committed) == sorted(str(FOLDER / name) for name in (RUNS, CURVES4, PROMPTS))
    code, written = finish(start(frozen, "status", "--tables", str(moved_on / FOLDER)))
    assert code == 0
    assert "2 of 2 runs" in written


def test_ctrl_c_is_one_line(story):
    _, seen = story
    code, written = seen["interrupted"]
    assert code == 130
    assert not seen["after interrupt"]
    assert [line for line in written.splitlines() if "interrupted" in line] == [
        "interrupted: finished runs are in study/tables. A run that was cut short goes on from its checkpoint, or "
        "begins anew. The same command goes on."
    ]
    assert "Traceback" not in written


def test_status_and_figures_need_the_tables_alone(story, run_study):
    fresh, _ = story
    code, written = run_study("status")
    assert code == 0
    assert "2 of 2 runs are in study/tables" in written
    code, written = run_study("figures")
    assert code == 0, written
    for name in ("core_curves.png", "core_forest.png"):
        assert (fresh / "study" / "pictures" / name).read_bytes().startswith(b"\x89PNG")
    page = (fresh / "study" / "pages" / "findings.md").read_text()
    assert "| reverse_digits | A | 1 | " in page
    assert "different objective" in page


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("beta: 1.0", "beta: 2.0", "reverse_digits, A: its keys are not those of the runs in the tables (hash"),
        ("prompts: 24", "prompts: 25", "evaluation asks for 25 prompts and 8 samples, and reverse_digits, plain,"),
        ("[[0, 1]]", "[[0, 1], [7, 1]]", "study/bases/reverse_digits-7 does not come with commit"),
    ],
)
def test_what_is_refused(story, run_study, old, new, message):
    fresh, _ = story
    path = fresh / "study" / "recipes" / "matrix.yaml"
    before = path.read_text()
    path.write_text(before.replace(old, new))
    try:
        code, written = run_study("run", *RUNNING)
    finally:
        path.write_text(before)
    assert code == 2
    assert message in written
    assert len(written.strip().splitlines()) == 1


def test_another_base_is_refused(story, run_study):
    fresh, _ = story
    saved = {name: (fresh / FOLDER / name).read_bytes() for name in (RUNS, BASES)}
    sha256 = rows(fresh)[0]["base_hash"]
    try:
        for name, content in saved.items():
            (fresh / FOLDER / name).write_bytes(content.replace(sha256.encode(), b"0" * 64))
        path = fresh / "study" / "recipes" / "matrix.yaml"
        before = path.read_text()
        path.write_text(before.replace("[[0, 1]]", "[[0, 1], [0, 2]]"))
        code, written = run_study("run", *RUNNING)
    finally:
        path.write_text(before)
        for name, content in saved.items():
            (fresh / FOLDER / name).write_bytes(content)
    assert code == 2
    assert f"SHA-256 {sha256[:12]}…" in written
    assert "runs on different bases do not compare" in written


def test_other_options_are_one_line(run_study):
    for arguments, message in (
        (("run", "--jobs", "0"), "JOBS=0 must be at least 1"),
        (("run", "--commit", "nowhere"), "COMMIT=nowhere: this repository has no such commit"),
        (("run", "--blocks", "cor"), "BLOCKS=cor: there is none (did you mean 'core'?)"),
        (("drop",), "drop: nothing is selected"),
    ):
        code, written = run_study(*arguments)
        assert code == 2
        assert message in written
        assert len(written.strip().splitlines()) == 1
