"""Ctrl-C: one line, what was kept and how to go on, exit code 130."""

import os
import signal
import time
from pathlib import Path

import pytest

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
