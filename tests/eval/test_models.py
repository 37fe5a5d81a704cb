import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from eval.models import (
    Point,
    checkpoint_points,
    find_trained_model,
    identity,
    last_step,
    load_point,
    load_tokenizer,
    trained_point,
)
from eval.runs import InputError


def test_the_models_of_a_run(run_dir, base, add_checkpoints):
    config = {"model_name_or_path": str(base)}
    add_checkpoints(run_dir, 8, 100, 20)
    (run_dir / "checkpoint-12").mkdir()  # no weights in it
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps({"step": step}) + "\n" for step in (1, 2, 100)))
    assert trained_point(run_dir, config) == Point("trained", 100, run_dir)
    found = checkpoint_points(run_dir, config, ["all"])
    # The last step's is the trained model.
    assert [(point.label, point.step, point.folder.name) for point in found] == [
        ("step-8", 8, "checkpoint-8"),
        ("step-20", 20, "checkpoint-20"),
    ]
    assert [point.step for point in checkpoint_points(run_dir, config, ["20", "8", "8"])] == [8, 20]
    for asked in ("12", "x"):
        with pytest.raises(InputError, match=f"--checkpoints {asked}: .* it has 8, 20, 100"):
            checkpoint_points(run_dir, config, [asked])


def test_every_point_loads_its_own_weights(run_dir, base, add_checkpoints):
    config = {"model_name_or_path": str(base)}
    add_checkpoints(run_dir, 8)
    tokenizer = load_tokenizer(run_dir)
    inputs = tokenizer("777>", return_tensors="pt").input_ids
    points = [Point("base", 0, None), *checkpoint_points(run_dir, config, ["all"]), trained_point(run_dir, config)]
    with torch.no_grad():
        logits = [load_point(point, config).eval()(input_ids=inputs).logits for point in points]
        plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()(input_ids=inputs).logits
    assert torch.equal(logits[0], plain)
    assert not torch.allclose(logits[1], logits[0], atol=1e-3)
    assert not torch.allclose(logits[2], logits[1], atol=1e-3)
    hashes = [json.dumps(identity(point.folder, config)) for point in points]
    assert len(set(hashes)) == 3


def test_without_checkpoints_the_cure_is_named(run_dir, base):
    with pytest.raises(InputError, match="has no checkpoint; train with save_strategy: steps"):
        checkpoint_points(run_dir, {"model_name_or_path": str(base)}, ["all"])


def test_the_record_may_lie_elsewhere(run_dir, tmp_path):
    record = tmp_path / "record"
    record.mkdir()
    assert find_trained_model(record, {"output_dir": str(run_dir)}) == run_dir
    assert last_step(record) is None
    with pytest.raises(InputError, match="no trained model"):
        find_trained_model(record, {})


def test_what_a_run_left_behind_may_be_an_earlier_checkpoint(run_dir, base, add_checkpoints):
    """The best one, or files that were copied there after a kill: it bears that step, and stands there once."""
    config = {"model_name_or_path": str(base)}
    add_checkpoints(run_dir, 8, 20)
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps({"step": step}) + "\n" for step in (1, 20, 57)))
    assert trained_point(run_dir, config).step == 57
    for path in (run_dir / "checkpoint-8").glob("*.safetensors"):
        (run_dir / path.name).write_bytes(path.read_bytes())
    (run_dir / "checkpoint-8" / "buffer-0.safetensors").write_bytes(
        b"a generation batch"
    )  # saved in the middle of one
    assert trained_point(run_dir, config) == Point("trained", 8, run_dir)
    assert [point.step for point in checkpoint_points(run_dir, config, ["all"])] == [20]
