"""Synthetic run folders, as a training run would have left them."""

import json
from functools import partial

import numpy as np
import pytest
import yaml


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def build_passk_result(base, trained, n=8, **changes):
    """`passk.json` from counts of correct samples per prompt; pass@1 by definition, made-up numbers for pass@4 and 8."""
    sides = {}
    for side, counts in (("base", base), ("trained", trained)):
        mean = float(np.mean(counts)) / n
        sides[side] = {"pass@1": mean, "interval@1": [mean - 0.05, mean + 0.05], "correct": list(counts)}
        for k in (4, 8):
            sides[side] |= {f"pass@{k}": min(1.0, mean + 0.1 * k), f"interval@{k}": [0.0, 1.0]}
    return {
        "split": "test",
        "prompts": len(base),
        "n": n,
        "k": [1, 4, 8],
        "temperature": 1.0,
        "seed": 0,
        "task": "reverse_digits",
        "level": 3,
        **sides,
        **changes,
    }


def write_run(root, name, variant, rows, events=(), passk=None, config=None, env=None, drift=None):
    folder = root / name
    folder.mkdir(parents=True)
    base = {"model_name_or_path": "tiny", "task": "reverse_digits", "task_level": 3}
    (folder / "config.yaml").write_text(yaml.safe_dump({**base, **(config or {})}))
    (folder / "env.json").write_text(json.dumps({"variant": variant, "seed": 0, **(env or {})}))
    write_jsonl(folder / "metrics.jsonl", rows)
    if events is not None:
        write_jsonl(folder / "events.jsonl", events)
    for file, content in (("passk.json", passk), ("drift.json", drift)):
        if content is not None:
            (folder / file).write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="session")
def run_writer():
    """Writes a run folder below the folder given first; `rows` are the lines of metrics.jsonl."""
    return write_run


@pytest.fixture
def make_run(tmp_path):
    """Writes a run folder below `tmp_path/runs`; `rows` are the lines of metrics.jsonl."""
    return partial(write_run, tmp_path / "runs")


@pytest.fixture
def offline(monkeypatch):
    """No network: a socket that is opened fails the test."""

    def refuse(*args, **kwargs):
        raise AssertionError("the metric opened a network connection")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)


@pytest.fixture(scope="session")
def passk_result():
    return build_passk_result


@pytest.fixture(scope="session")
def make_rows():
    """Lines of metrics.jsonl, one per step from 1; a value is a constant or a function of the step."""

    def make(steps=20, **values):
        return [
            {"step": step, **{key: value(step) if callable(value) else value for key, value in values.items()}}
            for step in range(1, steps + 1)
        ]

    return make
