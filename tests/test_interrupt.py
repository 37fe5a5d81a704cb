"""Ctrl-C: one line, what was kept and how to go on, exit code 130."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from eval.command import command
from trl_prorl.launch import command_line
from trl_prorl.launch.interrupt import what_is_kept
from trl_prorl.run.checkpoint import newest_complete


ROOT = Path(__file__).parent.parent
RECIPE = ROOT / "recipes" / "grpo_variantA.py"
LONG = ["--max_steps", "500", "--per_device_train_batch_size", "8", "--num_generations", "4", "--train_rows", "32"]
LONG += ["--lora_r", "4", "--disable_tqdm", "true", "--save_strategy", "steps"]


def wait_for(found, process):
    """Until something is there, or the process that is to bring it has ended."""
    while not found():
        os.kill(process, 0)
        time.sleep(0.01)


def interruptible():
    """Before an exec: a shell's background jobs, and so the tests that run in one, begin with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def lines_of(text, beginning="interrupted: "):
    assert "Traceback" not in text and "KeyboardInterrupt" not in text, text[-3000:]
    return [line for line in text.splitlines() if line.startswith(beginning)]


@pytest.mark.parametrize("ranks", [None, 2])
def test_a_run_that_is_interrupted_says_what_was_kept_and_goes_on(forks, tmp_path, tiny_model, ranks):
    out, log = tmp_path / "run", tmp_path / "log"
    arguments = ["--model_name_or_path", tiny_model, "--output_dir", str(out), *LONG, "--save_steps", "2"]
    order = {"run": str(RECIPE), "argv": arguments, "log": str(log)} | ({"ranks": ranks} if ranks else {})
    process = forks.start(**order)
    wait_for(lambda: newest_complete(out, content=False)[0] is not None, process)
    (os.killpg if ranks else os.kill)(process, signal.SIGINT)
    assert forks.status() == 130, log.read_text()[-3000:]
    (line,) = lines_of(log.read_text())
    checkpoint, _ = newest_complete(out)
    assert line == (
        f"interrupted: {checkpoint} and the record up to it are kept. Go on with the same command and "
        "--resume_from_checkpoint True."
    )
    assert not (out / "run.lock").exists()


def test_before_the_first_checkpoint_and_before_the_first_step(forks, tmp_path, tiny_model):
    out, log = tmp_path / "run", tmp_path / "log"
    arguments = ["--model_name_or_path", tiny_model, "--output_dir", str(out), *LONG, "--save_steps", "500"]
    process = forks.start(run=str(RECIPE), argv=arguments, log=str(log))
    metrics = out / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.stat().st_size, process)
    os.kill(process, signal.SIGINT)
    assert forks.status() == 130
    (line,) = lines_of(log.read_text())
    assert f"the record in {out} is kept, and there is no checkpoint yet" in line and "begins again" in line
    assert what_is_kept(tmp_path / "nothing", begun=False).startswith("no step was begun")
    assert "come to its end" in what_is_kept(out, begun=True, model=out / "adapter_model.safetensors")


def test_while_the_imports_last(monkeypatch, capsys):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, "first_look", interrupted)
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit) as end:
            command_line.main("recipe.yaml", [])
    finally:
        signal.signal(signal.SIGINT, before)
    assert end.value.code == 130 and lines_of(capsys.readouterr().err)


def test_an_evaluation(capsys):
    @command
    def main(argv=None):
        raise KeyboardInterrupt

    assert main([]) == 130
    (line,) = lines_of(capsys.readouterr().err)
    assert "kept" in line and "The same command goes on" in line


@pytest.mark.slow
def test_under_the_launcher_our_line_is_there_too(tmp_path, tiny_model):
    out, log = tmp_path / "run", tmp_path / "log"
    launcher = [
        str(Path(sys.executable).with_name("accelerate")),
        "launch",
        "--num_processes",
        "1",
        "--cpu",
        str(RECIPE),
    ]
    arguments = ["--model_name_or_path", tiny_model, "--output_dir", str(out), *LONG, "--save_steps", "2"]
    with open(log, "w") as file:
        process = subprocess.Popen(
            [*launcher, *arguments], stdout=file, stderr=file, start_new_session=True, preexec_fn=interruptible
        )
        try:
            wait_for(
                lambda: process.poll() is not None or newest_complete(out, content=False)[0] is not None, process.pid
            )
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(timeout=120) != 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert sum(line.startswith("interrupted: ") for line in log.read_text().splitlines()) == 1, log.read_text()[-3000:]
