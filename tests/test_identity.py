"""What a resume may change, and what it may not."""

from pathlib import Path

import pytest
import torch
from datasets import Dataset
from run_record import read_events, read_rows
from tiny_run import constant
from transformers import AutoModelForCausalLM

from trl_prorl import ProRLConfig
from trl_prorl.checkpoint.identity import changing_keys, check_same_run, dataset_hash, differences, weights_hash


KEYS = {"beta": 0.3, "ref_reset_every": 3, "max_steps": 4, "save_strategy": "steps", "save_steps": 2}


def config(**keys):
    return ProRLConfig(use_cpu=True, bf16=False, output_dir="a", **keys)


@pytest.mark.parametrize(
    "changed",
    [{"beta": 0.1}, {"num_generations": 4}, {"seed": 1}, {"learning_rate": 1e-3}, {"temperature": 0.7}]
    + [{"max_steps": 9}, {"kl_estimator": "k2"}, {"optim": "sgd"}, {"adam_beta2": 0.9}, {"nonfinite": "skip"}],
)
def test_arguments_on_which_numbers_depend(changed):
    assert set(differences(changing_keys(config()), changing_keys(config(**changed)))) >= set(changed)


@pytest.mark.parametrize(
    "changed",
    [{"save_steps": 3}, {"logging_steps": 3}, {"report_to": "none"}, {"run_dir": "b"}, {"resume_from_checkpoint": "c"}]
    + [{"disable_tqdm": True}, {"save_total_limit": 1}, {"reward_timeout": 1.0}, {"allow_config_change": True}],
)
def test_arguments_on_which_none_depends(changed):
    assert not differences(changing_keys(config()), changing_keys(config(**changed)))


def test_a_run_may_be_made_longer_where_its_past_does_not_depend_on_its_length():
    for schedule, free in (("constant", True), ("constant_with_warmup", True), ("linear", False), ("cosine", False)):
        pair = [changing_keys(config(lr_scheduler_type=schedule, max_steps=steps)) for steps in (5, 9)]
        assert (differences(*pair) == {}) is free


def test_datasets_are_told_apart_by_content():
    rows = {"prompt": ["a", "b", "c"], "answer": ["1", "2", "3"]}
    same, first = Dataset.from_dict(rows), dataset_hash(Dataset.from_dict(rows))
    assert dataset_hash(same) == dataset_hash(same.map(lambda row: row)) == first
    assert dataset_hash(Dataset.from_dict({**rows, "answer": ["1", "2", "4"]})) != first
    assert dataset_hash(same.select([1, 0, 2])) != first and dataset_hash(same.select([0, 1])) != first


def test_models_are_told_apart_by_their_weights():
    tensors = {"a": torch.arange(1000.0).view(10, 100), "b": torch.zeros(3, dtype=torch.bfloat16)}
    first = weights_hash(tensors.items())
    assert weights_hash({name: tensor.clone() for name, tensor in tensors.items()}.items()) == first
    tensors["a"][9, 99] += 1
    assert weights_hash(tensors.items()) != first
    assert weights_hash({"a": torch.arange(1000.0), "b": tensors["b"]}.items()) != first


def test_what_differs_is_listed():
    then, now = {"beta": 0.1, "seed": 1, "gone": 2}, {"beta": 0.2, "seed": 1, "new": 3}
    with pytest.raises(ValueError, match="beta: 0.1 -> 0.2. .*allow_config_change: true"):
        check_same_run(then, now, allowed=False)
    assert check_same_run(then, now, allowed=True) == {"beta": [0.1, 0.2]}


def test_another_run_is_refused_and_an_allowed_change_is_an_event(run, make_trainer):
    out = run(**KEYS).args.output_dir
    log = Path(out, "metrics.jsonl").read_text()
    for change, message in (
        ({"beta": 0.2, "num_generations": 8}, "beta: 0.3 -> 0.2; num_generations: 4 -> 8"),
        ({"prompts": 15}, "rows of the training set"),
        ({"reward": constant(0.0)}, "reward functions"),
    ):
        with pytest.raises(ValueError, match=message):
            make_trainer(output_dir=out, **{**KEYS, **change}).train(resume_from_checkpoint=True)
    assert Path(out, "metrics.jsonl").read_text() == log

    trainer = make_trainer(output_dir=out, allow_config_change=True, **KEYS | {"beta": 0.2, "max_steps": 6})
    trainer.train(resume_from_checkpoint=True)
    assert read_events(out, "resume")[-1]["changed"] == {"beta": [0.3, 0.2]}
    assert [row["beta"] for row in read_rows(out)] == [0.3] * 4 + [0.2] * 2


def test_another_base_model_is_refused(run, make_trainer, tiny_model, tmp_path):
    out = run(**KEYS).args.output_dir
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] += 0.5
    model.save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match="weights of the model"):
        make_trainer(output_dir=out, model=str(tmp_path / "other"), **KEYS).train(resume_from_checkpoint=True)
