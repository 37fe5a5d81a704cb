import json
import shutil
from itertools import pairwise

import pytest
import torch
from run_record import write_run
from transformers import AutoModelForCausalLM

from trl_prorl.errors import InputError
from trl_prorl.eval.samples import models
from trl_prorl.eval.samples.held_out import HeldOut
from trl_prorl.eval.samples.models import (
    Point,
    checkpoint_points,
    identity,
    load_point,
    load_tokenizer,
    trained_point,
)
from trl_prorl.run.log_files import write_run_id


@pytest.fixture
def config(base):
    return {"model_name_or_path": str(base), "revision": "main"}


def test_the_models_of_a_run(run_dir, config, add_checkpoints):
    with pytest.raises(InputError, match="not any"):
        checkpoint_points(run_dir, "all")
    add_checkpoints(run_dir, 8, 100, 20)
    (run_dir / "checkpoint-12").mkdir()  # no weights in it
    write_run(run_dir, metrics=[{"step": step} for step in (1, 2, 100)])
    assert trained_point(run_dir) == Point("trained", 100, run_dir)
    # The last step's is the trained model.
    assert checkpoint_points(run_dir, "all") == [
        Point(f"step-{step}", step, run_dir / f"checkpoint-{step}") for step in (8, 20)
    ]
    assert [point.step for point in checkpoint_points(run_dir, [20, 8, 8])] == [8, 20]
    with pytest.raises(InputError, match=r"\[8, 20, 100\], not \[12\]"):
        checkpoint_points(run_dir, [12])


def test_every_point_loads_its_own_weights(run_dir, base, config, add_checkpoints):
    add_checkpoints(run_dir, 8)
    tokenizer = load_tokenizer(run_dir)
    inputs = tokenizer("777>", return_tensors="pt").input_ids
    points = [Point("base", 0, None), *checkpoint_points(run_dir, "all"), trained_point(run_dir)]
    with torch.no_grad():
        logits = [load_point(point, config).eval()(input_ids=inputs).logits for point in points]
        plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()(input_ids=inputs).logits
    assert torch.equal(logits[0], plain)
    assert not any(torch.allclose(one, other, atol=1e-3) for one, other in pairwise(logits))
    assert len({json.dumps(identity(point.folder, config)) for point in points}) == 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU it is bfloat16 whatever the run says")
def test_the_precision_of_an_evaluation_on_a_cpu(run_dir, task, change_config, monkeypatch):
    """That of the run if the CPU computes in it; samples in bf16 are kept apart from those in float32."""
    stores = {}
    for bf16, instructions, dtype in (
        (None, True, torch.float32),
        (True, False, torch.float32),  # emulated, it is several times slower
        (True, True, torch.bfloat16),
    ):
        monkeypatch.setattr(models, "cpu_computes_bf16", lambda computes=instructions: computes)
        change_config(run_dir, bf16=bf16)
        held_out = HeldOut(run_dir, "test", 2)
        for point in (held_out.base, held_out.trained):
            loaded = load_point(point, held_out.config)
            assert {param.dtype for name, param in loaded.named_parameters() if "lora" not in name} == {dtype}
        stores[dtype] = held_out.store(held_out.base, held_out.sampling).file
    assert len(held_out.samples(held_out.trained, 2)) == 4
    assert len(set(stores.values())) == 2


def test_a_run_that_was_resumed_and_killed_left_the_weights_of_its_first_end(run_dir, config, add_checkpoints):
    """It ended at step 80; its log files and checkpoints are of the longer run, killed at step 150."""
    add_checkpoints(run_dir, 120, 150)
    write_run(run_dir, metrics=[{"step": step} for step in (80, 120, 150)])
    write_run_id(run_dir, "1", 80)
    assert trained_point(run_dir) == Point("trained", 80, run_dir)
    for wanted in ("all", [120, 150]):
        assert [point.step for point in checkpoint_points(run_dir, wanted)] == [120, 150]
    for step in (None, "80", True):
        write_run_id(run_dir, "1", step)
        assert trained_point(run_dir).step == 150


def test_weights_that_were_copied_from_a_checkpoint_have_its_step(run_dir, add_checkpoints):
    """The run was killed at step 25, or ended there; its best checkpoint, the first, is what it left."""
    add_checkpoints(run_dir, 8, 20)
    write_run(run_dir, metrics=[{"step": 25}])
    shutil.copy(run_dir / "checkpoint-8" / "adapter_model.safetensors", run_dir)
    for noted in (None, 25):
        write_run_id(run_dir, "1", noted)
        assert trained_point(run_dir).step == 8
        assert [point.step for point in checkpoint_points(run_dir, "all")] == [20]
