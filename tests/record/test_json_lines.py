"""Log files that a run appends to: which rows are part of the run."""

import json
import os
from pathlib import Path

import pytest

from trl_prorl.run.log_files import (
    EVALUATIONS_FILE,
    EVENTS_FILE,
    LOG_FILES,
    METRICS_FILE,
    JsonLines,
    next_attempt,
    read_log,
)


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
    events = [event("reset", 0, step) for step in (2, 4, 6)]
    events += [event("resume", 1, 4), event("reset", 1, 4)]
    metrics += [{"step": step, "attempt": 1} for step in (5, 6, 7)]
    events += [event("collapse", 1, 7), event("rollback", 2, 2), event("reset", 2, 2)]
    metrics += [{"step": 3, "attempt": 2}]
    write(tmp_path / METRICS_FILE, metrics)
    write(tmp_path / EVENTS_FILE, events)
    assert [(row["step"], row["attempt"]) for row in read_log(tmp_path, METRICS_FILE)] == [(1, 0), (2, 0), (3, 2)]
    # The reset of attempt 0 at step 2 came after the checkpoint of step 2 was saved, and was done again.
    assert read_log(tmp_path, EVENTS_FILE) == [event("rollback", 2, 2), event("reset", 2, 2)]
    assert next_attempt(tmp_path) == 3
    write(tmp_path / EVENTS_FILE, [event("resume", 3, 1)])
    assert [row["step"] for row in read_log(tmp_path, METRICS_FILE)] == [1]
    assert read_log(tmp_path, EVENTS_FILE) == [event("resume", 3, 1)]


class Killed(Exception):
    pass


class Run:
    """Writes what a run of four steps writes, a checkpoint after each, until so many bytes are written."""

    ROWS = (
        (METRICS_FILE, 1),
        (EVENTS_FILE, 1),  # a reset, once checkpoint 1 is saved
        (METRICS_FILE, 2),
        (EVALUATIONS_FILE, 2),
        (METRICS_FILE, 3),
        (EVENTS_FILE, 3),
        (METRICS_FILE, 4),
        (EVALUATIONS_FILE, 4),
    )

    def __init__(self, folder, size, checkpoint=None):
        self.folder = folder
        self.left = size
        self.attempt = 0 if checkpoint is None else next_attempt(folder)
        self.saved = checkpoint
        for file in LOG_FILES:
            JsonLines(folder / file, resumes=checkpoint is not None)
        try:
            if checkpoint is not None:
                self.write(EVENTS_FILE, event("resume", 0, checkpoint))
            for file, step in self.ROWS:
                if step > (checkpoint or 0) or file == EVENTS_FILE and step == checkpoint:
                    self.write(file, event("reset", 0, step) if file == EVENTS_FILE else {"step": step, "value": {}})
        except Killed:
            return

    def write(self, file, row):
        if row.get("step", row.get("step_applied")) > 1 and row.get("event") != "resume":
            self.saved = max(self.saved or 0, row.get("step", row.get("step_applied")) - 1)
        line = json.dumps({**row, "attempt": self.attempt}) + "\n"
        with open(self.folder / file, "a") as log:
            log.write(line[: self.left])
        if self.left < len(line):
            raise Killed
        self.left -= len(line)


def left_alone(folder):
    rows = [row for file in LOG_FILES for row in read_log(folder, file) if row.get("event") != "resume"]
    return [{name: value for name, value in row.items() if name != "attempt"} for row in rows]


@pytest.mark.parametrize("zeros", [0, 3])
def test_a_run_that_was_killed_at_any_byte_reads_as_if_left_alone(tmp_path, zeros):
    """Killed, resumed, killed again and resumed; a power loss puts zeros in the place of what was not on disk."""
    (tmp_path / "whole").mkdir()
    Run(tmp_path / "whole", 10**6)
    whole = left_alone(tmp_path / "whole")
    size = sum((tmp_path / "whole" / file).stat().st_size for file in LOG_FILES)
    for place in range(size):
        folder = tmp_path / str(place)
        folder.mkdir()
        first = Run(folder, place)
        if first.saved is None:
            continue
        with open(folder / EVENTS_FILE, "a") as log:
            log.write("\0" * zeros)
        second = Run(folder, place * 7 % 150, checkpoint=first.saved if place % 3 else 1)
        left_alone(folder)  # can be read
        Run(folder, 10**6, checkpoint=second.saved)
        assert left_alone(folder) == whole, place


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
