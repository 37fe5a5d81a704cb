"""A model that a GPU does not hold is refused in one line: transformers leaves a part of it on the CPU, in silence."""

from types import SimpleNamespace

import pytest
from transformers import AutoModelForCausalLM

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
