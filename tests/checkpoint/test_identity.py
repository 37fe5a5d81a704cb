"""Is it the same run? Which keys, rows and weights an identity has, and which changes a resume refuses."""

import datetime
import json
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset

from trl_prorl import KLSpike, ProRLConfig, ReferenceResetCallback, Stall
from trl_prorl.run.identity import IDENTITY_FILE, changing_keys, check_same_run, rows_hash, weights_hash


def test_the_best_of_another_metric_is_forgotten():
    old = ReferenceResetCallback([KLSpike(1.0, 3), Stall("eval_reward", 2)])
    old.in_training = True
    old.observe_row(1, {"kl_ref": 0.5})
    evaluated = {"eval_reward": 0.9, "eval_loss": 3.0}
    old.on_evaluate(None, SimpleNamespace(global_step=1), None, metrics=evaluated)
    state = json.loads(json.dumps(old.state_dict()))
    for stall, best in ((Stall("eval_reward", 5), 0.9), (Stall("eval_loss", 2, mode="min"), None)):
        spike = KLSpike(0.6, 2)
        ReferenceResetCallback([stall, spike]).load_state_dict(state)
        assert stall.best == best
        assert spike.observe_step(2, kl_ref=0.9).value == 0.7  # the mean of 0.5 and 0.9


@pytest.fixture
def compare(tmp_path):
    """Return a function that compares identities: `compare({"seed": 7}, {"seed": 8}, half_used=True)`."""

    def check(then, now, allowed=True, half_used=False):
        (tmp_path / IDENTITY_FILE).write_text(json.dumps(then))
        (tmp_path / "buffer-0.pt").unlink(missing_ok=True)
        if half_used:
            (tmp_path / "buffer-0.pt").touch()
        return check_same_run(tmp_path, now, allowed)

    return check


# Key: then and now. A resume would ignore the new value, or lacks a state for it.
WITHOUT_EFFECT = {
    "seed": (7, 8),
    "eval_on_start": (False, True),
    "optim": ("adamw_torch", "sgd"),
    "lr_scheduler_type": ("linear", "reduce_lr_on_plateau"),
    "learning_rate": (1e-2, 1e-3),
    "elastic_reset_every": (0, 3),
    "ref_reset_every": (2, 0),
    "metric_for_best_model": ("eval_reward", "eval_loss"),
}


# It changes the content of a generation batch, or the loss of its rows.
IN_BATCH = {
    "processes": (1, 2),
    "beta": (0.0, 0.3),
    "entropy_floor": (None, 0.1),
}


@pytest.mark.parametrize("key", WITHOUT_EFFECT)
def test_a_change_that_a_resume_would_ignore_is_refused(compare, key):
    old, new = WITHOUT_EFFECT[key]
    others = {"beta": 0.3}
    if key == "learning_rate":
        others["lr_scheduler_type"] = "reduce_lr_on_plateau"
    with pytest.raises(ValueError, match=f"{key}: "):
        compare(others | {key: old}, others | {key: new})


@pytest.mark.parametrize("key", IN_BATCH)
def test_nothing_but_the_length_changes_within_a_generation_batch(compare, key):
    old, new = IN_BATCH[key]
    assert compare({key: old}, {key: new}) == {key: [old, new]}
    with pytest.raises(ValueError, match=f"{key}: "):
        compare({key: old}, {key: new}, half_used=True)
    assert compare({"max_steps": 4}, {"max_steps": 6}, half_used=True) == {"max_steps": [4, 6]}


def test_resets_may_come_from_a_guard_alone(compare):
    then = {"beta": 0.3, "ref_reset_every": 2}
    assert compare(then, {"beta": 0.3, "ref_reset_every": 0, "guard_gap_action": "reset"})
    with pytest.raises(ValueError, match="ref_reset_every"):
        compare(then, {"beta": 0.3, "ref_reset_every": 0, "guard_gap_action": "event"})


def test_a_best_model_s_metric_that_the_trainer_chose_is_no_change(compare):
    assert compare({"metric_for_best_model": "eval_reward"}, {"metric_for_best_model": None}) == {}


NUMBERS_DEPEND = {"beta": 0.1, "seed": 1, "max_steps": 9, "kl_estimator": "k2", "optim": "sgd"}
NONE_DEPENDS = {"save_steps": 3, "logging_steps": 3, "overwrite": True, "save_total_limit": 1, "reward_timeout": 1.0}


@pytest.mark.parametrize(("keys", "differ"), [(NUMBERS_DEPEND, True), (NONE_DEPENDS, False)])
def test_arguments_on_which_numbers_depend_and_others(keys, differ):
    def keys_of(**changed):  # the estimator acts only with a KL
        return changing_keys(ProRLConfig(use_cpu=True, bf16=False, output_dir="a", **{"beta": 0.2, **changed}))

    for key, value in keys.items():
        assert (keys_of(**{key: value}) != keys_of()) == differ, key


def test_datasets_are_told_apart_by_content():
    rows = {"prompt": ["a", "b", "c"], "answer": ["1", "2", "3"]}
    same = Dataset.from_dict(rows)
    first = rows_hash(Dataset.from_dict(rows))
    assert {rows_hash(same.map(lambda row: row)), rows_hash(same.with_format("torch"))} == {first}
    answered = Dataset.from_dict(rows | {"answer": ["1", "2", "4"]})
    for dataset in (answered, same.select([1, 0, 2]), same.select([0, 1])):
        assert rows_hash(dataset) != first
    for before, after in ((b"a", b"b"), (datetime.date(2020, 1, 1), datetime.date(2020, 1, 2))):
        hashes = {rows_hash(Dataset.from_dict({"value": [value]})) for value in (before, after)}
        assert len(hashes) == 2


def test_models_are_told_apart_by_their_weights():
    large = torch.arange(1000.0).view(10, 100)
    small = torch.zeros(3, dtype=torch.bfloat16)
    tensors = {"a": large, "b": small}
    first = weights_hash(tensors.items())
    assert weights_hash({name: tensor.clone() for name, tensor in tensors.items()}.items()) == first
    for change in ({"a": large * 1.001}, {"b": small.float()}, {"a": large.flatten()}):
        assert weights_hash((tensors | change).items()) != first
    one_value = large.clone()
    one_value[5, 51] += 1
    changed = tensors | {"a": one_value}
    assert weights_hash(changed.items(), whole=True) != weights_hash(tensors.items(), whole=True)
