"""The page's lines of pandas leave out what is no longer part of a run, as the package does."""

from doc_pages import ROOT, named_file

from trl_prorl.run.log_files import EVENTS_FILE, METRICS_FILE, JsonLines, read_log


def write(path, *rows):
    log = JsonLines(path, resumes=path.exists())
    for row in rows:
        log.write(row)


def test_pandas_reads_a_run_that_was_killed_and_resumed(tmp_path):
    write(tmp_path / METRICS_FILE, *({"step": step, "attempt": 0, "reward": step / 8} for step in range(1, 7)))
    with open(tmp_path / METRICS_FILE, "a") as file:
        file.write('{"step": 7, "attempt": 0, "x": {}')  # the kill
    write(tmp_path / EVENTS_FILE, {"event": "reset", "attempt": 0, "step_applied": 2})
    write(tmp_path / EVENTS_FILE, {"event": "resume", "attempt": 1, "step_applied": 4})
    write(tmp_path / METRICS_FILE, *({"step": step, "attempt": 1, "reward": 0.25} for step in (5, 6)))
    write(tmp_path / EVENTS_FILE, {"event": "resume", "attempt": 2, "step_applied": 5})
    write(tmp_path / METRICS_FILE, {"step": 6, "attempt": 2, "reward": 0.5})
    path = tmp_path / METRICS_FILE
    path.write_text(path.read_text().removesuffix("\n"))  # killed before the end of the line
    block = named_file((ROOT / "docs" / "trackers.md").read_text(), "read_metrics.py")
    values = {}
    exec(block.replace("runs/a", str(tmp_path)), values)
    rows = values["rows"].to_dict("records")
    assert rows == read_log(tmp_path, METRICS_FILE)
    assert [(row["step"], row["attempt"]) for row in rows] == [*((step, 0) for step in range(1, 5)), (5, 1), (6, 2)]
