"""Ctrl-C: one line, what was kept and how to go on, exit code 130."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from transformers import TrainerCallback

from trl_prorl.run.folder import step_of, steps_of


ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "grpo_variantA.py"
LONG = "--max_steps 500 --per_device_train_batch_size 8 --num_generations 4 --train_rows 32 --lora_r 4 "
LONG += "--disable_tqdm true --save_strategy steps --save_steps"


def wait_for(found, process):
    """Until something is there, or the process that is to bring it has ended."""
    while not found():
        os.kill(process, 0)
        time.sleep(0.01)


def newest(folder):
    """The newest checkpoint of a folder; `None` if there is none."""
    return max(steps_of(folder), key=step_of, default=None)


def popen(command, **kwargs):
    """
    A process whose stderr is read. A shell's background jobs, and so the tests that run in one, begin with SIGINT
    ignored.
    """
    given = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, **kwargs}
    return subprocess.Popen(command, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **given)


def lines_of(text):
    assert "Traceback" not in text and "KeyboardInterrupt" not in text, text[-3000:]
    return [line for line in text.splitlines() if line.startswith("interrupted: ")]


@pytest.mark.parametrize(("ranks", "save_steps"), [(None, 2), (2, 2), (None, 500)])
def test_a_run_that_is_interrupted_says_what_was_kept_and_goes_on(forks, tmp_path, tiny_model, ranks, save_steps):
    out = tmp_path / "run"
    log = tmp_path / "log"
    metrics = out / "metrics.jsonl"
    given = ["--model_name_or_path", tiny_model, "--output_dir", str(out), *LONG.split(), str(save_steps)]
    order = {"ranks": ranks} if ranks else {}
    process = forks.start(run=str(RECIPE), argv=given, log=str(log), **order)
    if save_steps == 2:
        wait_for(lambda: newest(out), process)
    else:
        wait_for(lambda: metrics.exists() and metrics.stat().st_size, process)
    (os.killpg if ranks else os.kill)(process, signal.SIGINT)
    assert forks.status() == 130, log.read_text()[-3000:]
    (line,) = lines_of(log.read_text())
    how = "save_steps). Start again at step 0"
    if save_steps == 2:
        how = f"{newest(out)} and the log files up to it are saved"
    assert str(out) in line and how in line and "--resume_from_checkpoint auto" in line


SCRIPT = """
import os, signal, sys
import training

_, model, out = sys.argv
trainer = training.build(model, out, True, 4, {"max_steps": 500})
trainer.add_callback(training.AtStep(2, lambda args: os.kill(os.getpid(), signal.SIGINT)))
trainer.train()
"""


def test_a_script_says_what_was_kept(forks, tiny_model, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    out = tmp_path / "run"
    status, written = forks.run(tmp_path / "script.py", tiny_model, out)
    (line,) = [line for line in written.splitlines() if line.startswith("interrupted: ")]
    assert str(out / "checkpoint-1") in line and "train(resume_from_checkpoint='auto')" in line
    assert status != 0 and "transformers/trainer.py" not in written  # no frame of the loop


def test_a_script_may_catch_it(make_trainer, tmp_path, capsys):
    """A notebook shows the error that is raised, without the frames of the loop."""

    class Key(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            raise KeyboardInterrupt

    trainer = make_trainer(output_dir=str(tmp_path / "run"), trainer_kwargs={"callbacks": [Key()]})
    with pytest.raises(KeyboardInterrupt) as error:
        trainer.train()
    assert not any("transformers" in str(frame.path) for frame in error.traceback)
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("interrupted: "))
    assert str(tmp_path / "run") in line and "step 0 with train(" in line


@pytest.mark.parametrize("command", [[str(RECIPE)], ["-m", "trl_prorl", "passk", "--run", "run"]])
def test_while_the_imports_last(command, tmp_path):
    (tmp_path / "run").mkdir()  # what the command line names is looked at before
    (tmp_path / "run" / "config.yaml").write_text("model_name_or_path: embedded\ntask: reverse_digits\n")
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1}\n')
    command = [sys.executable, "-X", "importtime", *command]  # it writes a line for every module
    with popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}) as process:
        assert any(line.rpartition("|")[2].strip() == "numpy" for line in process.stderr)
        process.send_signal(signal.SIGINT)
        assert len(lines_of(process.stderr.read())) == 1
    assert process.returncode == 130


def test_a_push(hub, hub_forks, run, tmp_path):
    """While it waits to try again."""
    trainer = run(max_steps=1)
    log = tmp_path / "log"
    trainer.save_model()
    hub.fail("/commit/", 500)
    argv = ["eval.push", "--run", trainer.args.output_dir, "--repo", "someone/stopped"]
    process = hub_forks.start(run="-m", argv=argv, log=str(log))
    wait_for(lambda: any("/commit/" in request for request in hub.requests), process)
    os.kill(process, signal.SIGINT)
    assert hub_forks.status() == 130, log.read_text()[-3000:]
    assert len(lines_of(log.read_text())) == 1
    assert hub.files("someone/stopped") == {}
