"""A command's stderr holds our own lines alone, on a CPU for which bitsandbytes looks for a kernel, too."""

import logging
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from trl_prorl.quiet import KERNEL_HINT, KERNEL_LOGGER, hold_old_names


ROOT = Path(__file__).parent.parent
HINT = f"{KERNEL_HINT}: %s. Please make sure you already `pip install kernels` and the kernels >= 0.11.1"
SMALL = "--max_steps 1 --per_device_train_batch_size 8 --num_generations 4 --train_rows 16".split()
SMALL += "--use_cpu true --logging_steps 1".split()
FEW = "--max_steps 3 --save_strategy steps --save_steps 1".split()


@pytest.fixture
def python(tmp_path):
    """A function that runs a command in a process of its own, on such a CPU: stdout, stderr."""

    def run(*command):
        asked = tmp_path / "asked"
        env = {name: value for name, value in os.environ.items() if not name.startswith(("TRL_", "PYTHONWARN"))}
        env |= {"PYTHONPATH": str(ROOT / "tests" / "avx512bf16"), "ASKED": str(asked), "HF_HUB_OFFLINE": "1"}
        done = subprocess.run([sys.executable, *command], cwd=ROOT, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert asked.exists(), "bitsandbytes was not imported: nothing was tried"
        return done.stdout, done.stderr

    return run


@pytest.mark.slow
def test_every_command(python, tmp_path):
    """With a progress bar, which is our own line; `eval.push` is left out, for it needs a Hub. Fast: as installed."""
    out = str(tmp_path / "run")
    _, noise = python(str(ROOT / "recipes" / "grpo_variantB.py"), "--output_dir", out, *SMALL, *FEW)
    lines = [line for line in noise.replace("\r", "\n").split("\n") if line.strip()]
    assert lines
    assert [line for line in lines if not re.search(r"\d%\|.*\| \d+/\d+ \[", line)] == []
    few = ["--run", out, "--prompts", "20"]
    assert python("-m", "eval.passk", *few, "--n", "2", "--checkpoints", "all")[1] == ""
    assert python("-m", "eval.drift", *few)[1] == ""
    assert python("-m", "eval.report", "--runs", out, "--out", str(tmp_path / "report"))[1] == ""
    for command in ("boundary", "trajectory"):
        assert python("-m", f"eval.{command}", "--run", out)[1] == ""


def test_other_words_of_bitsandbytes_are_shown(caplog):
    logger = logging.getLogger(KERNEL_LOGGER)
    logger.addHandler(caplog.handler)
    logger.warning(HINT, "No module named 'kernels'")
    logger.warning("Failed to load the CPU library")
    logger.removeHandler(caplog.handler)
    assert set(caplog.messages) == {"Failed to load the CPU library"}


def test_only_the_old_names_are_passed_over():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hold_old_names()
        warnings.warn("`gradient_checkpointing` is deprecated and will be removed", FutureWarning)
        warnings.warn("`is_gradient_checkpointing` is deprecated and will be removed", FutureWarning)
        warnings.warn("`warmup_ratio` is deprecated and will be removed", FutureWarning)
    assert [str(each.message) for each in caught] == ["`warmup_ratio` is deprecated and will be removed"]
