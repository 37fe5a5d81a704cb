"""Set-ups in which a copy would reach nothing, or half of it, are refused before a model is loaded."""

from types import SimpleNamespace

import pytest

from trl_prorl import ProRLConfig, ProRLTrainer


def config(**keys):
    base = {"use_cpu": True, "bf16": False, "per_device_train_batch_size": 8, "num_generations": 4}
    return ProRLConfig(**{**base, **keys})


@pytest.mark.parametrize(
    "stage, keys, parts",
    [
        (3, {"beta": 0.1, "ref_reset_every": 2}, ["zero_stage=3", "zero2.yaml"]),
        (3, {"elastic_reset_every": 2}, ["zero_stage=3"]),
        (3, {"beta_base": 0.1}, ["zero_stage=3"]),
        (2, {"beta": 0.1, "ref_reset_every": 2, "optimizer_reset": "hard"}, ["optimizer_reset='hard'", "DeepSpeed"]),
        (2, {"beta": 0.1, "ref_reset_every": 2, "optimizer_reset_rewarmup_steps": 3}, ["DeepSpeed"]),
    ],
)
def test_deepspeed(stage, keys, parts):
    args = config(**keys)
    args.deepspeed_plugin = SimpleNamespace(zero_stage=stage)
    with pytest.raises(ValueError) as error:
        ProRLTrainer("/no/model/is/loaded", lambda **kwargs: [], args)
    for part in parts:
        assert part in str(error.value)


MOVED = {"beta": 0.1, "ref_reset_every": 2}  # trained whole, and saved


@pytest.mark.parametrize("keys", [{"elastic_reset_every": 2}, {"beta_base": 0.1}, MOVED])
def test_fsdp(keys):
    args = config(**keys)
    args.fsdp = True
    with pytest.raises(ValueError, match="FSDP.*multi_gpu.yaml"):
        ProRLTrainer("/no/model/is/loaded", lambda **kwargs: [], args)
