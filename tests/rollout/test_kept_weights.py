"""Weights stay what and where they are, when TRL casts them to generate, and when it hands them to vLLM."""

import copy
import re
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from packed_models import MOE, build
from peft import IA3Config, LoraConfig, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from tiny_run import LORA, QUESTIONS, disturb_adapter, load_with_new_adapter, logits
from transformers import AutoModelForCausalLM
from trl.distributed import DistributedBackend
from trl.generation.vllm_generation import VLLMGeneration

from trl_prorl import ProRLTrainer
from trl_prorl.extras.vllm import check_merged, find_adapted_weights, merge_in_copies


def merges_in_copies(engine):
    ProRLTrainer.wrap_synced_weights(SimpleNamespace(vllm_generation=engine), partial(merge_in_copies, engine.model))


class Engine(VLLMGeneration):
    """TRL's, with made-up completions. It keeps what it is given, and compares that with the policy as it samples."""

    def __init__(self, model, accelerator, **settings):
        self.model = model
        self.given = {}
        self.is_current = []
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


ADAPTERS = {
    "linear": {},
    "embeddings": {"target_modules": ["q_proj", "embed_tokens"]},
    "bias": {"lora_bias": True, "target_modules": ["q_proj", "k_proj"]},
    "dora": {"use_dora": True},
    "saved": {"modules_to_save": ["norm"]},
}


def adapted_experts():
    """A policy around the experts of whose layers PEFT wraps two adapters: one for each of their two parameters."""
    adapted = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    return get_peft_model(
        build("qwen3_moe", **MOE), LoraConfig(r=2, target_modules=["q_proj"], target_parameters=adapted)
    )


@pytest.mark.parametrize("kind", [*ADAPTERS, "experts"])
def test_a_hand_over_is_trl_s_bit_for_bit_and_the_policy_is_never_touched(tiny_model, kind):
    is_moe = kind == "experts"
    policy = adapted_experts() if is_moe else load_with_new_adapter(tiny_model, **LORA | ADAPTERS[kind]).bfloat16()
    disturb_adapter(policy, 0.1)
    assert is_moe == (2 in {len(weight.layers) for weight in find_adapted_weights(policy).values()})
    before = {name: (id(param), param.detach().clone()) for name, param in policy.named_parameters()}

    def is_untouched():
        pairs = [(before[name], param) for name, param in policy.named_parameters()]
        return all(id(param) == own and torch.equal(param, value) for (own, value), param in pairs)

    theirs = Engine(copy.deepcopy(policy), Accelerator(cpu=True))
    theirs.sync_weights()
    ours = Engine(policy, Accelerator(cpu=True))
    merges_in_copies(ours)
    for name, weight in ours._iter_named_params():
        assert is_untouched()
        ours.given[name] = weight
    assert ours.given.keys() == theirs.given.keys()
    assert all(torch.equal(weight, theirs.given[name]) for name, weight in ours.given.items())
    assert is_untouched()
    assert not any(layer.merged for layer in policy.modules() if isinstance(layer, BaseTunerLayer))
    assert not {"merge_adapter", "unmerge_adapter"} & set(vars(policy))
    policy.merge_adapter()
    assert not is_untouched()  # the next one merges again


@pytest.mark.parametrize(
    "config, said",
    [
        (None, "the model has none"),
        (LoraConfig(use_dora=True), "use_dora"),
        (LoraConfig(r=513), "513"),
        (LoraConfig(bias="all"), "bias='all'"),
        (LoraConfig(init_lora_weights="pissa"), "init_lora_weights='pissa'"),
        (IA3Config(), "peft_type=IA3"),
    ],
    ids=["full fine-tuning", "DoRA", "a large rank", "biases", "other base weights", "IA3"],
)
def test_an_adapter_that_vllm_does_not_serve_is_refused(with_engine, config, said):
    with pytest.raises(ValueError, match=f"^vllm_enable_lora=True.*{re.escape(said)}"):
        with_engine(vllm_enable_lora=True, trainer_kwargs={"peft_config": config})


def test_weights_in_codes_are_not_handed_over():
    """An 8-bit layer would take its own codes for weights at its next forward."""
    base = SimpleNamespace(config=SimpleNamespace(quantization_config={"load_in_8bit": True}))
    with pytest.raises(ValueError, match="^use_vllm=True .*8 bits.*vllm_enable_lora"):
        check_merged(SimpleNamespace(get_base_model=lambda: base))


TIED_AS_ONE = {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}
ON_EMBEDDINGS = {
    "linear": {},
    "lora": {"target_modules": ["q_proj", "embed_tokens"]},
    "parameter": {"target_parameters": ["embed_tokens.weight"]},
    "saved head": {"modules_to_save": ["lm_head"]},
    "saved embeddings": {"modules_to_save": ["embed_tokens"]},
    "both saved": {"modules_to_save": ["embed_tokens", "lm_head"]},
    "saved as one": TIED_AS_ONE,
    "both saved as one": TIED_AS_ONE | {"modules_to_save": ["embed_tokens", "lm_head"]},
    "rows": {"trainable_token_indices": [70, 84]},
    "rows of the head": {"trainable_token_indices": {"lm_head": [70, 84]}},
}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("keys", ON_EMBEDDINGS.values(), ids=ON_EMBEDDINGS)
def test_an_adapter_that_vllm_would_not_sample_from_is_refused(with_engine, tiny_model, tmp_path, tied, keys):
    """vLLM's loading in short: of a tied model it drops the head, and a name that it does not know is an error."""
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    if not tied:
        base.lm_head.weight = torch.nn.Parameter(base.lm_head.weight.detach().clone())
        base.config.tie_word_embeddings = False
    base.save_pretrained(tmp_path / "base")
    receiver = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    policy = get_peft_model(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), LoraConfig(**LORA | keys))
    torch.manual_seed(0)
    with torch.no_grad():
        for param in policy.parameters():
            if param.requires_grad:
                param.add_(torch.randn_like(param) * 0.05)
    engine = Engine(policy, Accelerator(cpu=True))
    merges_in_copies(engine)
    engine.sync_weights()
    known = dict(receiver.named_parameters(remove_duplicate=False))
    received = {name: weight for name, weight in engine.given.items() if not (tied and name.startswith("lm_head."))}
    with torch.no_grad():
        for name in received.keys() & known.keys():
            known[name].copy_(received[name])
    is_policy = received.keys() <= known.keys() and torch.allclose(logits(receiver), logits(policy), atol=1e-4)
    if is_policy:
        with_engine(model=policy, lora=False)
        return
    with pytest.raises(ValueError, match="^use_vllm=True.*(embed_tokens|lm_head|trainable_token_indices)") as refused:
        with_engine(model=policy, lora=False)
    assert "\n" not in str(refused.value)


def test_a_policy_that_was_reset_is_handed_on_although_an_evaluation_of_this_step_has_sampled(with_engine):
    """An evaluation at steps 2 and 4, then Elastic Reset: without the second hand-over vLLM samples from no policy."""
    keys = {
        "elastic_reset_every": 2,
        "elastic_ema": 0.5,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "per_device_eval_batch_size": 8,
        "max_steps": 6,
        "lora": False,
    }
    trainer, engine = with_engine(trainer_kwargs=QUESTIONS, **keys)
    trainer.train()
    assert len(engine.is_current) >= 6
    assert all(engine.is_current)
