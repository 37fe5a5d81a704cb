"""TRL's own suite with our classes, the workflow on TRL's releases and main: would they notice a difference?"""

import os
import subprocess
import sys
from importlib import import_module
from importlib.metadata import requires
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement


ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "upstream"


@pytest.fixture
def comparison(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return import_module("comparison")


def test_ci_installs_the_version_of_the_release_and_the_newest():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "upstream.yml").read_text())
    tested, newest = map(Requirement, workflow["jobs"]["supported"]["strategy"]["matrix"]["trl"])
    (required,) = (each for each in map(Requirement, requires("trl-prorl")) if each.name == "trl" and not each.marker)
    assert tested.specifier == required.specifier
    assert newest == Requirement("trl")


REPORT = """<testsuites><testsuite>
<testcase classname="a.C" name="test_holds"/>
<testcase classname="c" name="test_not_run"><skipped type="pytest.skip" message="no package">at</skipped></testcase>
<testcase classname="c" name="test_known"><skipped type="pytest.xfail" message="why"/></testcase>
<testcase classname="c" name="test_still_has[_compute_loss]">
<failure message="AssertionError">    def test():
E       AssertionError: TRL no longer has GRPOTrainer._compute_loss, where penalties are added
E       assert False</failure>
</testcase>
<testcase classname="c" name="test_broken"/>
<testcase classname="c" name="test_broken"><error message="ImportError: no name Ratio"/></testcase>
<testcase classname="c" name="test_broken"/>
</testsuite></testsuites>"""


def test_each_test_s_end_is_read_and_what_failed_once_has_failed(comparison):
    found = comparison.read_outcomes(REPORT)
    of_c = {"test_not_run": "skipped", "test_known": "xfailed", "test_broken": "failed"}
    of_c["test_still_has[_compute_loss]"] = "failed"
    ends = {test: end.outcome for test, end in found.items()}
    assert ends == {"C::test_holds": "passed"} | {f"c::{name}": end for name, end in of_c.items()}
    assert found["c::test_not_run"].reason == "no package"
    assert found["c::test_broken"].reason == "ImportError: no name Ratio"
    moved = found["c::test_still_has[_compute_loss]"].reason
    assert moved == "TRL no longer has GRPOTrainer._compute_loss, where penalties are added"


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


@pytest.mark.parametrize(
    ("theirs", "ours", "where"),
    [
        ("passed", "passed", "BOTH"),
        *(("passed", other, "LOST") for other in ("failed", None)),
        ("skipped", "passed", "GAINED"),
        ("failed", "failed", "NEITHER"),
        ("failed", "skipped", "NEITHER"),
        ("skipped", "skipped", "NOT_RUN"),
    ],
)
def test_a_pair_of_outcomes(comparison, theirs, ours, where):
    def outcomes(outcome, **others):
        return others if outcome is None else {**others, "test": comparison.Outcome(outcome, "why")}

    other = comparison.Outcome("passed")
    result = comparison.Comparison(outcomes(theirs, other=other), outcomes(ours, other=other))
    found = {title: set(tests) - {"other"} for title, tests in result.found.items()}
    assert [title for title, tests in found.items() if tests] == [getattr(comparison, where)]
    assert result.agrees == (where != "LOST")
    # Nothing passed is no agreement.
    assert comparison.Comparison(outcomes(theirs), outcomes(ours)).agrees == (where == "BOTH")


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
