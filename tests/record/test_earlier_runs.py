"""Runs of an earlier version, in earlier_runs/: read and compared, but not resumed. One was rolled back."""

import json
import shutil
from pathlib import Path

import pytest
from run_record import hash_files

from trl_prorl.eval import compare, report
from trl_prorl.run.folder import RunFolder
from trl_prorl.run.log_files import EVENTS_FILE, METRICS_FILE, read_log


@pytest.fixture
def runs(tmp_path):
    return shutil.copytree(Path(__file__).with_name("earlier_runs"), tmp_path / "runs")


def test_each_step_of_a_run_that_was_rolled_back_counts_once(runs):
    assert [row["step"] for row in read_log(runs / "A", METRICS_FILE)] == [1, 2, 3, 4, 5]
    steps = [event["step_applied"] for event in read_log(runs / "A", EVENTS_FILE) if event["event"] == "reset"]
    assert steps == [2, 4]
    assert [row["step"] for row in read_log(runs / "plain", METRICS_FILE)] == [1, 2, 3, 4, 5, 6]


def test_report_and_compare_read_them(runs, tmp_path, capsys):
    assert report.main(["--runs", str(runs / "A"), str(runs / "plain"), "--out", str(tmp_path / "page")]) == 0
    pages = list(tmp_path.rglob("page*.html")) + list((tmp_path / "page").glob("*.html"))
    assert pages and "reverse_digits" in pages[0].read_text()
    capsys.readouterr()
    numbers = tmp_path / "numbers.json"
    assert compare.main(["--runs", str(runs / "A"), str(runs / "plain"), "--json", str(numbers)]) == 0
    assert "pass@1" in json.dumps(json.loads(numbers.read_text()))


@pytest.mark.parametrize("resume", [True, "auto", "checkpoint-5"])
def test_they_are_not_resumed_and_stay_as_they_are(make_trainer, runs, resume):
    out = runs / "A"
    before = hash_files(runs)
    with pytest.raises(ValueError, match="another version of trl-prorl"):
        trainer = make_trainer(output_dir=str(out), max_steps=6)
        trainer.train(resume_from_checkpoint=str(out / resume) if resume == "checkpoint-5" else resume)
    with pytest.raises(ValueError, match="already contains a run"), RunFolder(out).held():
        RunFolder(out).check_room(None, overwrite=False)
    assert hash_files(runs) == before
