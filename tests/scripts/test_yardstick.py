"""The yardstick: its kept file has every training of its list, and a difference from it is shown."""

import gzip
import json
import sys
from copy import deepcopy
from pathlib import Path

import pytest


SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def yardstick(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    environ = dict.fromkeys(("OMP_NUM_THREADS", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA"), "1")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)  # which the import changes
    import yardstick

    yield yardstick
    for name in ("yardstick", "trajectory", "compare_commits", "features"):
        sys.modules.pop(name)


def test_every_training_is_kept(yardstick):
    kept = json.loads(gzip.decompress(yardstick.KEPT.read_bytes()))["runs"]
    assert kept.keys() == yardstick.read_runs().keys()
    assert len(kept) == 30
    for name, run in yardstick.read_runs().items():
        assert len(kept[name]["rows"]["step"]) >= 5
        assert run["killed"] == name.endswith("-killed")
    assert len({run["weights"] for run in kept.values()}) >= 29  # A-kl-spike resets when A0 does


def test_a_difference_is_shown(yardstick):
    kept = {
        "weights": "a",
        "rows": {"step": [1, 2], "reward": [0.5, 0.25]},
        "events": [{"step": 1}],
        "evaluations": [],
    }
    assert yardstick.differences(kept, deepcopy(kept)) == []
    for part, value, word in (
        ("weights", "b", "weights"),
        ("rows", {"step": [1, 2], "reward": [0.5, 0.250001]}, "reward"),
        ("rows", {"step": [1, 2]}, "reward"),
        ("rows", kept["rows"] | {"entropy": [1.0, 1.0]}, "entropy"),
        ("rows", {"step": [1], "reward": [0.5]}, "step"),
        ("events", [], "events"),
        ("events", [{"step": 2}], "step"),
        ("evaluations", [{"step": 2}], "evaluations"),
    ):
        found = yardstick.differences(kept, kept | {part: value})
        assert found and word in found[0], (part, value, found)
    other_machine = {"weights": "b", "rows": {"step": [1, 2], "reward": [0.50001, 0.25]}, "events": [{"step": 1}]}
    assert yardstick.differences(kept, kept | other_machine, yardstick.TOLERANCE) == []
    moved = {"events": [{"step": 1, "requests": [{"value": 1.001}]}]}
    same_event = kept | {"events": [{"step": 1, "requests": [{"value": 1.0}]}]}
    assert yardstick.differences(same_event, same_event | moved, yardstick.TOLERANCE) == ["events: other requests"]
