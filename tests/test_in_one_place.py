"""A model that a GPU does not hold is refused in one line: transformers leaves a part of it on the CPU, in silence."""

import copy
import logging
from types import SimpleNamespace

import pytest
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer

from trl_prorl.launch import plan
from trl_prorl.launch.checks import check_in_one_place


@pytest.mark.parametrize("rest", ["cpu", "disk"])
def test_a_part_that_was_left_is_counted(rest):
    placed = {"model.embed_tokens": 0, "model.layers.0": 0, "model.layers.1": rest}
    with pytest.raises(ValueError, match="left 1 of its 3 parts on the CPU or on disk.*load_in_4bit: true"):
        check_in_one_place(SimpleNamespace(hf_device_map=placed))


@pytest.mark.parametrize("placed", [{"": 0}, {"": "cpu"}, {"": "cuda:0"}, None])
def test_a_whole_model_is_not_refused(placed):
    check_in_one_place(SimpleNamespace(hf_device_map=placed))
    check_in_one_place(SimpleNamespace())
    check_in_one_place(None)  # there is no full reference


@pytest.mark.parametrize("keys", [{"beta": 0.1, "ref_reset_every": 2}, {"beta_old": 0.1}])
def test_before_anything_reads_its_weights(make_trainer, tiny_model, monkeypatch, keys):
    """Loaded by us, where its reference moves, and elsewhere by TRL."""

    def split(*args, **settings):
        model = AutoModelForCausalLM.from_pretrained(tiny_model)
        model.hf_device_map = {"model.layers": "disk", "lm_head": "cpu"}
        return model

    monkeypatch.setattr(plan, "create_model_from_path", split)
    monkeypatch.setattr("trl.trainer.grpo_trainer.create_model_from_path", split)
    with pytest.raises(ValueError, match="left 2 of its 2 parts"):
        make_trainer(**keys)


@pytest.mark.parametrize("lora", [True, False])
def test_a_model_on_one_device_is_not_said_to_be_on_several(make_trainer, tiny_model, monkeypatch, lora):
    """What transformers logs for any model with a device map."""
    said, heard = [], logging.Handler()
    heard.emit = lambda record: said.append(record.msg)
    monkeypatch.setattr(logging.getLogger("transformers.trainer"), "handlers", [heard])
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    model.hf_device_map = {"": "cpu"}
    make_trainer(GRPOTrainer, model=copy.deepcopy(model), lora=lora)
    assert ["already on multiple devices" in words for words in said] == [True]  # the situation
    said.clear()
    make_trainer(model=model, lora=lora)
    assert said == []
