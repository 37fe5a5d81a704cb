"""The trainer in two real processes (gloo) whose weights FSDP2 shards: resets and treatments reach every shard."""

import json
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_training_under_fsdp2_moves_its_reference_and_clears_its_moments(forks, tiny_model, tmp_path):
    out, log = tmp_path / "run", tmp_path / "log"
    argv = [tiny_model, str(out), json.dumps({"optimizer_reset": "hard"})]
    script = str(Path(__file__).parent / "sharded_trainer_worker.py")
    forks.start(run=script, argv=argv, ranks=2, log=str(log))
    assert forks.status() == 0, log.read_text()[-4000:]
    first, second = (json.loads(Path(f"{out}-rank{rank}.json").read_text()) for rank in (0, 1))
    assert first["type"] == "DistributedType.FSDP" and first["parameters"] == ["DTensor"]
    assert first["seen"] == [{"step": step, "moved": True, "moments": 0.0} for step in (2, 4)]
    assert first["policy"] == second["policy"]
