"""TRL's own suite with our classes, the workflow on TRL's releases and main: would they notice a difference?"""

import os
import subprocess
import sys
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "upstream"


# A suite of ours, laid out as TRL's.
SUITE = """
import torch
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

from .nothing import ZERO


def trainer(tmp_path):
    return GRPOTrainer(
        model="trl-internal-testing/tiny-Qwen2ForCausalLM-2.5",
        reward_funcs="trl-internal-testing/tiny-Qwen2ForSequenceClassification-2.5",
        args=GRPOConfig(output_dir=str(tmp_path), report_to="none", use_cpu=True),
        train_dataset=load_dataset("trl-internal-testing/zen", "standard_prompt_only", split="train"),
    )


def test_both(tmp_path):
    made = trainer(tmp_path)
    assert made.train_dataset[ZERO] == {"prompt": "Beautiful is better than"}
    assert torch.tensor([151645, 7]).tolist() == [made.processing_class.eos_token_id, 7]


def test_theirs(tmp_path):
    assert type(trainer(tmp_path)).__name__ == "GRPOTrainer"


def test_ours():
    assert GRPOConfig.__name__ == "ProRLConfig"


def test_neither():
    load_dataset("trl-internal-testing/zen", "standard_prompt_only", split="none such")


def test_no_stand_in():
    load_dataset("trl-internal-testing/other")


def test_no_stand_in_for_the_model():
    raise AssertionError("tiny-Other is not there")  # "trl-internal-testing/tiny-Other"
"""


def run(*arguments):
    command = [sys.executable, str(FOLDER / "run_trl_suite.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
def test_a_difference_is_found(tmp_path):
    tests = tmp_path / "trl" / "tests"
    tests.mkdir(parents=True)
    (tests / "__init__.py").touch()
    (tests / "nothing.py").write_text("ZERO = 0\n")
    (tests / "test_grpo_trainer.py").write_text(SUITE)
    result = run(str(tmp_path / "trl"))
    assert result.returncode == 1, result.stdout + result.stderr
    titles = ("not with ours:\n", "not with TRL's:\n", "passed with neither:\n")
    lost, gained, neither = (result.stdout.split(title)[1].split("\n\n")[0] for title in titles)
    assert "test_theirs" in lost
    assert "test_ours" in gained
    assert "test_neither" in neither
    for what in ("data set trl-internal-testing/other", "model tiny-Other"):
        assert f"no stand-in for the {what}" in result.stdout
    assert run(str(tmp_path / "trl"), "-k", "test_both").returncode == 0


def test_no_path_is_one_line(monkeypatch):
    monkeypatch.delenv("TRL_TESTS", raising=False)
    result = run()
    assert result.returncode == 2
    assert "set TRL_TESTS" in result.stderr


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("TRL_TESTS"), reason="TRL_TESTS does not say where a checkout of TRL is")
def test_ours_pass_what_trls_classes_pass():
    result = run()
    assert result.returncode == 0, result.stdout + result.stderr
