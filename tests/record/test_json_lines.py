"""Log files that a run appends to: which rows are part of the run."""

import json
import os
from pathlib import Path

import pytest

from trl_prorl.run.log_files import EVENTS_FILE, METRICS_FILE, JsonLines, next_attempt, read_log


def write(path, rows):
    log = JsonLines(path, resumes=path.exists())
    for row in rows:
        log.write(row)


def event(kind, attempt, step):
    return {"event": kind, "attempt": attempt, "step_applied": step}


def test_rows_behind_a_resume_are_left_out(tmp_path):
    """
    A run that is killed at step 6 and resumed at 4; rolled back from 7 to 2, as earlier versions did; resumed at 1.
    """
    metrics = [{"step": step, "attempt": 0} for step in range(1, 7)]
    events = [event("reset", 0, step) for step in (1, 2, 4, 6)]
    events += [event("resume", 1, 4), event("reset", 1, 4)]
    metrics += [{"step": step, "attempt": 1} for step in (5, 6, 7)]
    events += [event("collapse", 1, 7), event("rollback", 2, 2), event("reset", 2, 2)]
    metrics += [{"step": 3, "attempt": 2}]
    write(tmp_path / METRICS_FILE, metrics)
    write(tmp_path / EVENTS_FILE, events)
    assert [(row["step"], row["attempt"]) for row in read_log(tmp_path, METRICS_FILE)] == [(1, 0), (2, 0), (3, 2)]
    # The reset of attempt 0 at step 2 came after the checkpoint of step 2 was saved, and was done again.
    assert read_log(tmp_path, EVENTS_FILE) == [event("reset", 0, 1), event("rollback", 2, 2), event("reset", 2, 2)]
    assert next_attempt(tmp_path) == 3
    write(tmp_path / EVENTS_FILE, [event("resume", 3, 1)])
    assert [row["step"] for row in read_log(tmp_path, METRICS_FILE)] == [1]
    assert read_log(tmp_path, EVENTS_FILE) == [event("resume", 3, 1)]


@pytest.mark.parametrize("zeros", [0, 3])
def test_a_line_that_was_cut_at_any_byte_costs_its_row_alone(tmp_path, zeros):
    """A power loss puts zeros in the place of what was not on disk."""
    before, cut, after = ({"step": step, "attempt": step - 1} for step in (1, 2, 3))
    line = json.dumps(cut)
    for size in range(len(line) + 2):
        folder = tmp_path / str(size)
        write(folder / METRICS_FILE, [before])
        with open(folder / METRICS_FILE, "a") as log:
            log.write((line + "\n")[:size] + "\0" * zeros)
        write(folder / METRICS_FILE, [after])
        is_whole = size > len(line) or size == len(line) and not zeros
        assert read_log(folder, METRICS_FILE) == [before, *[cut] * is_whole, after], size


def test_an_attempt_is_on_disk_before_its_rows(run, resume, monkeypatch):
    """Else a power loss could leave rows of two resumes with the same number."""
    keys = {"save_strategy": "steps", "save_steps": 2}
    whole = run(**keys)
    log = Path(whole.args.output_dir, METRICS_FILE)
    rows_before = log.read_text()
    events = log.with_name(EVENTS_FILE)
    synced = []

    def fsync(descriptor):
        if os.path.samestat(os.fstat(descriptor), events.stat()) and log.read_text() == rows_before:
            synced.append(json.loads(events.read_text().splitlines()[-1])["event"])

    monkeypatch.setattr("os.fsync", fsync)
    resume(whole, 2, output_dir=whole.args.output_dir, **keys)
    assert synced == ["resume"]
    assert log.read_text() != rows_before
