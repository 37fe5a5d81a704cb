"""Read what a run has written, and write what one could have."""

import hashlib
import json
from pathlib import Path

import yaml


TIMED = ("time", "second", "memory", "utilization")


def read_rows(run, file="metrics.jsonl"):
    """
    Read a log file of a run, without what a resume or a roll-back has left behind. `run`: a trainer or a folder.
    """
    folder = Path(run.args.output_dir if hasattr(run, "args") else run)
    rows = read_lines(folder / file)
    events = folder / "events.jsonl"
    for start in read_lines(events) if events.exists() else []:
        if start["event"] in ("resume", "rollback"):
            rows = [row for row in rows if row["attempt"] >= start["attempt"] or stays(row, start["step_applied"])]
    return [{key: value for key, value in row.items() if key != "attempt"} for row in rows]


def read_lines(path):
    """Read a JSON Lines file; a line that was cut off is left out."""
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def stays(row, step):
    """Return whether a row is of before the checkpoint of a step; a reset there came after the save."""
    kind = row.get("event")
    if kind in ("reset", "elastic_reset", "growth"):
        return row["step_applied"] < step
    return kind == "rollback" or row.get("step", row.get("step_applied")) <= step


def write_run(folder, config=None, metrics=None, events=None, evaluations=None, **others):
    """Write a run folder as a training leaves it: recipe, record, `env`, `passk`, …; `None` leaves a file out."""
    folder.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
    for name, rows in (("metrics", metrics), ("events", events), ("evaluations", evaluations)):
        if rows is not None:
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, content in others.items():
        if content is not None:
            (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def read_events(run, *kinds):
    """Read the events of a run: those of these kinds, or all but the record of resumes."""
    events = read_rows(run, "events.jsonl")
    return [event for event in events if (event["event"] in kinds if kinds else event["event"] != "resume")]


def modification_times(folder):
    """Return the time of the last change, in ns, of every file and folder below a folder."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def hash_files(folder, without=()):
    """Return the SHA-256 of every file below a folder by its name, without those in a path part of `without`."""
    found = [path for path in Path(folder).rglob("*") if path.is_file() and not {*path.parts} & {*without}]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def error_lines(written):
    """Return the lines of an output that begin with `error: `."""
    return [line for line in written.splitlines() if line.startswith("error: ")]


def without_times(value):
    """Return a value of any nesting without the keys of times and memory."""
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if not any(word in str(key) for word in TIMED)}
    return [without_times(item) for item in value] if isinstance(value, list) else value
