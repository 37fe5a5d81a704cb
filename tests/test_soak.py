"""The soak's own parts, and that it finds what is broken on purpose. The soak itself: `make soak`."""

import json
import re
import shlex
import sys
from pathlib import Path
from random import Random

import pytest
import torch


SOAK = Path(__file__).parent / "soak"
sys.path.append(str(SOAK))

from damage import CHECKPOINT_DAMAGE, RECORD_DAMAGE, cut_record, damage_checkpoint  # noqa: E402
from mutants import MUTANTS  # noqa: E402
from same_run import first_difference  # noqa: E402

from trl_prorl.checkpoint.files import name_checkpoint, why_unusable  # noqa: E402


@pytest.mark.parametrize("kind", RECORD_DAMAGE)
def test_a_record_loses_no_more_than_a_power_loss_takes(tmp_path, kind):
    """A checkpoint at step 3 was synchronised, with every line written before it; the reset of that step was not."""
    events = [("reset", 2), ("nonfinite", 3), ("reset", 3), ("resume", 3)]
    lines = [json.dumps({"event": event, "step_applied": step}) + "\n" for event, step in events]
    for place in (0.0, 0.3, 0.9, 1.0):
        (tmp_path / "events.jsonl").write_text("".join(lines))
        cut_record(tmp_path / "events.jsonl", 3, kind, place)
        content = (tmp_path / "events.jsonl").read_text()
        assert content.startswith("".join(lines[:2])) and content != "".join(lines)
        assert not content.endswith("\n") or kind == "cut" and place == 0.0


@pytest.mark.parametrize("kind", CHECKPOINT_DAMAGE)
def test_a_damaged_checkpoint_is_damaged(tmp_path, kind):
    for number in range(12):
        aside, final = tmp_path / f"aside{number}", tmp_path / f"checkpoint-{number}"
        aside.mkdir()
        (aside / "weights").write_bytes(bytes(range(256)) + b"\0" * 64)
        (aside / "state").write_bytes(b"state")
        name_checkpoint(aside, final, number, resumable=True)
        before = {path.name: path.read_bytes() for path in final.iterdir()}
        what = damage_checkpoint(final, kind, Random(number))
        after = {path.name: path.read_bytes() for path in final.iterdir()}
        assert before != after and kind in what
        if "manifest" not in what:  # where a byte of a name or a number may mean nothing
            assert why_unusable(final)


@pytest.mark.parametrize(
    "mine, theirs, where",
    [
        ({"a": [1, {"b": torch.zeros(2)}]}, {"a": [1, {"b": torch.zeros(2)}]}, None),
        ([1, {"b": torch.zeros(2)}], [1, {"b": torch.tensor([0, 1e-9])}], "[1].b: tensors differ by up"),
        ({"w": torch.zeros(2)}, {"w": torch.zeros(2, dtype=torch.float64)}, ".w: tensors differ"),
        ([1, 2], [1], ": 2 items instead of 1"),
        ({"a": 1, "b": 2}, {"a": 1}, ": keys ['b']"),
        ({"a": None}, {"a": 0}, ".a: None instead of 0"),
    ],
)
def test_the_first_difference_is_named(mine, theirs, where):
    found = first_difference(mine, theirs)
    assert found is None if where is None else found.startswith(where)


def soak(forks, *arguments):
    status, written = forks.run(SOAK / "soak.py", *arguments)
    assert status in (0, 1), written[-3000:]
    return status, written


@pytest.mark.slow
def test_a_sound_product_passes_and_every_stage_is_hit(forks, tmp_path):
    status, written = soak(forks, "--seed", "1", "--minutes", "0", "--kills", "8", "--folder", str(tmp_path))
    assert status == 0, written[-3000:]
    for stage in ("generation", "update", "evaluation", "save"):
        assert int(re.search(rf"^{stage} .* (\d+)$", written, re.MULTILINE)[1]) >= 1
    accidents, found = re.search(r"^seed 1, .* minutes: (\d+) accidents, (\d+) found$", written, re.MULTILINE).groups()
    assert int(accidents) >= 8 and found == "0"


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_defect_is_found(forks, tmp_path, mutant):
    case = {"reference": "A, full", "rewarmup": "C by a KL spike, hard", "growth": "A, growth"}.get(mutant, "B")
    # In most trials of another seed no run that has gone back is killed before it saves again.
    seed = {"future": "390"}.get(mutant, "3")
    arguments = ["--seed", seed, "--mutant", mutant, "--case", case, "--processes", "1", "--minutes", "0", "--first"]
    status, written = soak(forks, *arguments, "--kills", "60", "--folder", str(tmp_path / "first"))
    assert status == 1, written[-3000:]
    assert "TypeError" not in written  # of a mutant that cannot run at all
    if mutant != "record":
        return
    assert "metrics.jsonl: " in written
    again = shlex.split(re.search(r"Again: python tests/soak/soak.py (.*)", written)[1])
    status, repeated = soak(forks, *again, "--folder", str(tmp_path / "again"))
    assert status == 1 and again in [shlex.split(line.partition("soak.py")[2]) for line in repeated.splitlines()]
