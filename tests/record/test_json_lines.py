"""Log files that a run appends to: which rows are part of the run."""

from trl_prorl.run_files import EVENTS_FILE, METRICS_FILE, JsonLines, next_attempt, read_log


def write(path, rows):
    log = JsonLines(path, begins=not path.exists())
    for row in rows:
        log.write(row)


def event(kind, attempt, step):
    return {"event": kind, "attempt": attempt, "step_applied": step}


def test_rows_behind_a_resume_are_left_out(tmp_path):
    """
    A run that is killed at step 6 and resumed at 4; rolled back from 7 to 2, and resumed there; resumed at 1.
    """
    metrics = [{"step": step, "attempt": 0} for step in range(1, 7)]
    events = [event("reset", 0, step) for step in (2, 4, 6)]
    events += [event("resume", 1, 4), event("reset", 1, 4)]
    metrics += [{"step": step, "attempt": 1} for step in (5, 6, 7)]
    events += [event("collapse", 1, 7), event("rollback", 2, 2), event("resume", 3, 2), event("reset", 3, 2)]
    metrics += [{"step": 3, "attempt": 3}]
    write(tmp_path / METRICS_FILE, metrics)
    write(tmp_path / EVENTS_FILE, events)
    assert [(row["step"], row["attempt"]) for row in read_log(tmp_path, METRICS_FILE)] == [(1, 0), (2, 0), (3, 3)]
    # The reset of attempt 0 at step 2 came after the checkpoint of step 2 was saved, and was done again.
    kept = [event("rollback", 2, 2), event("resume", 3, 2), event("reset", 3, 2)]
    assert read_log(tmp_path, EVENTS_FILE) == kept
    assert next_attempt(tmp_path) == 4
    write(tmp_path / EVENTS_FILE, [event("resume", 4, 1)])
    assert [row["step"] for row in read_log(tmp_path, METRICS_FILE)] == [1]
    assert read_log(tmp_path, EVENTS_FILE) == [event("rollback", 2, 2), event("resume", 4, 1)]
