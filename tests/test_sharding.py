"""
Sharded weights: set-ups in which a copy would reach nothing, or half of it, are refused before a model is loaded; and
the trainer in two real processes (gloo) that FSDP2 or ZeRO-2 shards: resets, treatments, and a resume.
"""

import json
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from trl_prorl import ProRLConfig, ProRLTrainer


WORKER = str(Path(__file__).parent / "sharded_trainer_worker.py")
NO_DEEPSPEED = pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs pip install 'trl-prorl[deepspeed]'")
MOVED = {"beta": 0.1, "ref_reset_every": 2}


@pytest.mark.parametrize(
    "stage, keys, said",
    [
        (3, MOVED, "zero_stage=3.*zero2.yaml"),
        (3, {"elastic_reset_every": 2}, "zero_stage=3"),
        (3, {"beta_base": 0.1}, "zero_stage=3"),
        (2, MOVED | {"optimizer_reset": "hard"}, "optimizer_reset='hard'.*DeepSpeed"),
        (2, MOVED | {"optimizer_reset_rewarmup_steps": 3}, "DeepSpeed"),
        *((None, keys, "FSDP.*multi_gpu.yaml") for keys in ({"elastic_reset_every": 2}, {"beta_base": 0.1}, MOVED)),
    ],
)
def test_what_would_reach_half_of_the_weights_is_refused(stage, keys, said):
    args = ProRLConfig(use_cpu=True, bf16=False, per_device_train_batch_size=8, num_generations=4, **keys)
    if stage is None:
        args.fsdp = True
    else:
        args.deepspeed_plugin = SimpleNamespace(zero_stage=stage)
    with pytest.raises(ValueError, match=said):
        ProRLTrainer("/no/model/is/loaded", lambda **kwargs: [], args)


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine, kind, keys",
    [
        ("fsdp2", "lora", {"optimizer_reset": "hard"}),
        ("fsdp2", "lora", {}),
        ("fsdp2", "full", {"optimizer_reset": "hard", "save_strategy": "no"}),
        pytest.param("zero2", "lora", {}, marks=NO_DEEPSPEED),
        pytest.param("zero2", "full", {}, marks=NO_DEEPSPEED),
    ],
)
def test_every_shard_is_reset_and_a_resume_goes_on(forks, tiny_model, tmp_path, engine, kind, keys):
    out = tmp_path / "run"

    def trained(*checkpoint):
        log = tmp_path / "log"
        forks.start(
            run=WORKER, argv=[engine, tiny_model, str(out), kind, json.dumps(keys), *checkpoint], ranks=2, log=str(log)
        )
        assert forks.status() == 0, log.read_text()[-4000:]
        return [json.loads(Path(f"{out}-rank{rank}.json").read_text()) for rank in (0, 1)]

    first, second = trained()
    assert first["type"] == {"fsdp2": "DistributedType.FSDP", "zero2": "DistributedType.DEEPSPEED"}[engine]
    assert first["parameters"] == {"fsdp2": ["DTensor"], "zero2": ["Parameter"]}[engine]
    cleared = keys.get("optimizer_reset") == "hard"
    assert [(one["step"], one["moved"]) for one in first["seen"]] == [(2, True), (4, True)]
    assert all((one["moments"] == 0.0) == cleared for one in first["seen"])
    assert first["policy"] == second["policy"]
    if keys.get("save_strategy") != "no":
        again, _ = trained(str(out / "checkpoint-4"))
        assert [one["step"] for one in again["seen"]] == [4] and again["policy"] == first["policy"]
