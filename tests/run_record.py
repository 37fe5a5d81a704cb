"""What a run has written, as the tests read it."""

import json
from pathlib import Path


TIMED = ("time", "second", "memory", "utilization")


def read_rows(run, file="metrics.jsonl"):
    """The objects of a JSON Lines file of a run, which a trainer or its folder stands for, in their order."""
    folder = run.args.output_dir if hasattr(run, "args") else run
    return [json.loads(line) for line in Path(folder, file).read_text().splitlines()]


def read_events(run, *kinds):
    """The events of a run: those of these kinds, or all but the record of resumes."""
    events = read_rows(run, "events.jsonl")
    return [event for event in events if (event["event"] in kinds if kinds else event["event"] != "resume")]


def untimed(value):
    """Without times and memory, at any depth."""
    if isinstance(value, dict):
        return {key: untimed(item) for key, item in value.items() if not any(word in str(key) for word in TIMED)}
    return [untimed(item) for item in value] if isinstance(value, list) else value
