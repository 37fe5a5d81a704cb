"""Weights stay what and where they are: TRL casts them to generate, transformers leaves some on the CPU."""

import copy
import logging
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer

from trl_prorl import ProRLTrainer
from trl_prorl.launch import plan
from trl_prorl.launch.checks import check_in_one_place


@pytest.mark.parametrize("cls", [GRPOTrainer, ProRLTrainer])
@pytest.mark.parametrize("lora", [True, False])
def test_a_generation_by_continuous_batching(make_trainer, weights, monkeypatch, cls, lora):
    """What `generate_batch` returns is made up; what TRL does around it is TRL's."""
    trainer = make_trainer(cls, lora=lora)
    trainer.use_transformers_continuous_batching, trainer.continuous_batching_config = True, None
    trainer.args.bf16 = True  # as on a GPU
    model = trainer.accelerator.unwrap_model(trainer.model)
    seen = []

    def generate_batch(prompts, **settings):
        seen.extend({param.dtype for param in model.parameters()})
        return {place: SimpleNamespace(generated_tokens=[5, 6]) for place, _ in enumerate(prompts)}

    owner = model.get_base_model() if lora else model
    monkeypatch.setattr(owner, "generate_batch", generate_batch, raising=False)
    with torch.no_grad():
        for param in model.parameters():
            param.add_(torch.randn_like(param) * 1e-3)
    before, buffers = weights(trainer), [buffer.clone() for buffer in model.buffers()]
    completions, _ = trainer._generate_single_turn([[1, 2], [3]], None, {}, 1)
    assert completions == [[5, 6], [5, 6]] and seen == [torch.bfloat16]
    after = weights(trainer)
    if cls is GRPOTrainer:  # the situation
        assert all(param.dtype == torch.bfloat16 for param in after.values())
        return
    pairs = [(after[name], before[name]) for name in before] + [*zip(model.buffers(), buffers, strict=True)]
    assert all(torch.equal(new, old) and new.dtype == old.dtype for new, old in pairs)


@pytest.mark.parametrize("rest", ["cpu", "disk"])
def test_a_part_that_was_left_is_counted_and_a_whole_model_is_not_refused(rest):
    placed = {"model.embed_tokens": 0, "model.layers.0": 0, "model.layers.1": rest}
    with pytest.raises(ValueError, match="left 1 of its 3 parts on the CPU or on disk.*load_in_4bit: true"):
        check_in_one_place(SimpleNamespace(hf_device_map=placed))
    for whole in ({"": 0}, {"": "cpu"}, {"": "cuda:0"}, None):
        check_in_one_place(SimpleNamespace(hf_device_map=whole))
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
