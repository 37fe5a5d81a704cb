"""TRL hands the policy's weights to vLLM: which ones, and what that leaves behind. vLLM itself is not needed."""

import re

import pytest
import torch
from peft import LoraConfig
from tiny_run import QUESTIONS
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer
from trl.distributed import DistributedBackend
from trl.generation.vllm_generation import VLLMGeneration
from trl.import_utils import is_vllm_available

from trl_prorl import ProRLTrainer


class Engine(VLLMGeneration):
    """TRL's, with made-up completions. It keeps what it is given, and compares that with the policy as it samples."""

    def __init__(self, model, accelerator, **settings):
        self.model, self.given, self.is_current = model, {}, []
        self._dist = DistributedBackend(accelerator)

    def sync_weights(self):
        self.given = {name: param.clone() for name, param in self._iter_named_params()}

    def generate(self, prompts, images, num_generations, profiler):
        named = dict(self.model.named_parameters())
        same = [torch.equal(self.given[name], param) for name, param in named.items() if name in self.given]
        self.is_current.append(bool(same) and all(same))
        ids = [[90 + 5 * (place % 7), 100 + 3 * (place % 5), 110] for place in range(len(prompts))]
        return prompts, ids, [[[-1.0] for _ in one] for one in ids], None


def second_token(completion_ids, **columns):
    return [float(ids[1] % 4) for ids in completion_ids]


@pytest.fixture
def with_engine(make_trainer, monkeypatch):
    off = {"vllm_importance_sampling_correction": False}  # the log-probabilities are made up
    monkeypatch.setattr("trl.trainer.grpo_trainer.VLLMGeneration", Engine)

    def make(*args, **keys):
        trainer = make_trainer(*args, reward=second_token, use_vllm=True, **off, **keys)
        return trainer, trainer.vllm_generation

    return make


@pytest.mark.parametrize("cls", [GRPOTrainer, ProRLTrainer])
def test_the_weights_under_an_adapter_stay_what_they_are(with_engine, tiny_model, cls):
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16)
    trainer, engine = with_engine(cls, model=model, max_steps=8, learning_rate=0.05)
    policy = trainer.accelerator.unwrap_model(trainer.model)
    under = {name: param for name, param in policy.named_parameters() if "base_layer" in name}
    before = {name: param.detach().clone() for name, param in under.items()}
    trainer.train()
    changed = [name for name, param in under.items() if not torch.equal(param, before[name])]
    if cls is GRPOTrainer:  # the situation
        assert changed
        return
    assert not changed
    # What vLLM gets is the policy, its adapter merged.
    engine.sync_weights()
    policy.merge_adapter()
    names = {name: name.removeprefix("base_model.model.").replace(".base_layer", "") for name in under}
    assert all(torch.equal(engine.given[names[name]], param) for name, param in under.items())
    assert any(not torch.equal(engine.given[names[name]], before[name]) for name in under)


@pytest.mark.parametrize(
    "config, said",
    [
        (None, "the model has none"),
        (LoraConfig(use_dora=True), "use_dora=True"),
        (LoraConfig(modules_to_save=["lm_head"]), "modules_to_save=['lm_head']"),
        (LoraConfig(r=513), "ranks up to 512, and the adapter's reaches 513"),
    ],
    ids=["full fine-tuning", "DoRA", "a head of its own", "a large rank"],
)
def test_an_adapter_that_vllm_does_not_serve_is_refused(with_engine, config, said):
    with pytest.raises(ValueError, match=f"^vllm_enable_lora=True.*{re.escape(said)}"):
        with_engine(vllm_enable_lora=True, trainer_kwargs={"peft_config": config})


@pytest.mark.skipif(is_vllm_available(), reason="vLLM is installed")
def test_without_vllm_requests_are_refused_by_trl(make_trainer):
    with pytest.raises(ImportError, match="vLLM is not available"):
        make_trainer(use_vllm=True, vllm_enable_lora=True)


def test_a_policy_that_was_reset_is_handed_on_although_an_evaluation_of_this_step_has_sampled(with_engine):
    """An evaluation at steps 2 and 4, then Elastic Reset: without the second hand-over vLLM samples from no policy."""
    keys = {"elastic_reset_every": 2, "elastic_ema": 0.5, "eval_strategy": "steps", "eval_steps": 2}
    keys |= {"per_device_eval_batch_size": 8, "max_steps": 6, "lora": False}
    trainer, engine = with_engine(trainer_kwargs=QUESTIONS, **keys)
    trainer.train()
    assert len(engine.is_current) >= 6 and all(engine.is_current)
