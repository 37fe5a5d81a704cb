"""What the trainer relies on inside TRL and transformers: methods, where their arguments stand, what they leave."""

import inspect
import re

import pytest
import torch
from transformers import Trainer
from trl import GRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration

from trl_prorl import ProRLTrainer


OURS = [ProRLTrainer, ProRLTrainer.__bases__[0]]


def parameters(method):
    return inspect.signature(inspect.unwrap(method)).parameters


@pytest.mark.parametrize("cls", OURS)
def test_every_method_that_is_extended_is_there(cls):
    called = set(re.findall(r"super\(\)\.(\w+)", inspect.getsource(cls)))
    assert called
    assert [name for name in called if not hasattr(GRPOTrainer, name)] == []


@pytest.mark.parametrize("cls", OURS)
def test_every_method_that_is_replaced_takes_the_arguments_that_it_is_given(cls):
    for name, method in vars(cls).items():
        if name == "__init__" or not inspect.isfunction(method) or not hasattr(GRPOTrainer, name):
            continue
        mine = parameters(method)
        if not any(parameter.kind is parameter.VAR_POSITIONAL for parameter in mine.values()):
            theirs = [
                name for name, each in parameters(getattr(GRPOTrainer, name)).items() if each.default is each.empty
            ]
            assert len(theirs) <= len(mine), name


@pytest.mark.parametrize("cls", OURS)
def test_every_private_name_that_is_read_is_there(cls, make_trainer):
    read = set(re.findall(r"\bself\.(_[a-z]\w+)", inspect.getsource(cls)))
    trainer = make_trainer()
    later = {"_last_loaded_step", "_batch_environments"}  # with vLLM, with environments
    assert [name for name in read - later if not hasattr(trainer, name)] == []


def test_where_arguments_stand():
    assert list(parameters(Trainer._maybe_log_save_evaluate))[1:3] == ["tr_loss", "grad_norm"]
    scoring = GRPOTrainer._get_per_token_logps_and_entropies
    assert list(parameters(scoring))[1:5] == ["model", "input_ids", "attention_mask", "logits_to_keep"]
    assert list(parameters(Trainer._init_training_state))[4] == "resume_from_checkpoint"


def test_what_is_replaced_of_vllm_is_there():
    for name in ("_init_vllm", "_iter_named_params", "sync_weights", "generate"):
        assert callable(getattr(VLLMGeneration, name))


def test_a_sampler_s_order_comes_from_its_own_generator(make_trainer):
    sampler = make_trainer()._get_train_sampler()
    expected = torch.randperm(16, generator=torch.Generator().manual_seed(7)).tolist()
    assert list(dict.fromkeys(sampler)) == expected, "one permutation an epoch, of a generator with the run's seed"


def test_the_buffer_hands_out_the_same_dict_twice(make_trainer):
    trainer = make_trainer()
    trainer.model.train()
    batch = [{"prompt": trainer.train_dataset[0]["prompt"]} for _ in range(8)]
    first = trainer._prepare_inputs(batch)
    trainer._step += 1
    assert trainer._prepare_inputs(batch) is first


def test_ref_is_made_beside_default_for_a_peft_model(make_trainer, trained_adapter):
    trainer = make_trainer(model=trained_adapter(), lora=False, beta=0.1)
    model = trainer.accelerator.unwrap_model(trainer.model)
    assert set(model.peft_config) == {"default", "ref"}
    assert model.active_adapter == "default"
    parameters = dict(model.named_parameters())
    names = {name: name.replace(".default.", ".ref.") for name in parameters if ".default." in name}
    assert names
    assert all(torch.equal(parameters[name], parameters[ref]) for name, ref in names.items())
