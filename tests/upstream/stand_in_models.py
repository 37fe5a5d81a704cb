"""Tiny models with random weights under the names of TRL's test models, in a folder laid out as a Hub cache.

With that folder as `HF_HOME` and the Hub switched off, `from_pretrained` finds them with nothing patched.
"""

import json
from pathlib import Path

import stand_in_datasets
import stand_in_vision
import torch
import transformers
from stand_in_tokenizers import make_tokenizer
from torch import nn
from transformers import PreTrainedModel


OWNER = "trl-internal-testing"
REVISION = "0" * 40  # stands for a commit

SMALL = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 4096,
}
# A scalar reward needs a wider network to tell completions apart.
REWARD = {**SMALL, "hidden_size": 16, "num_labels": 1}


HEADED = {**SMALL, "head_dim": 8}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
GLM = {**SMALL, **EXPERTS, "head_dim": 2, "n_routed_experts": 4, "attention_bias": True, "use_qk_norm": True}
NEMOTRON = {
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
    "layers_block_type": ["mamba", "attention", "moe"],
    "mamba_num_heads": 8,
    "mamba_head_dim": 4,
    "mamba_n_groups": 1,
    "ssm_state_size": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32,
}

# By the name on the Hub, in which the class in transformers stands: chat template, and what its config is made of.
STAND_INS = {
    "tiny-Qwen2ForCausalLM-2.5": ("qwen2_5", SMALL),
    "tiny-Qwen3ForCausalLM": ("qwen3", HEADED),
    "tiny-Qwen3MoeForCausalLM": ("qwen3", HEADED | EXPERTS | {"num_experts": 4}),
    "tiny-Cohere2ForCausalLM": ("cohere2", SMALL | {"logit_scale": 1.0}),
    "tiny-Gemma2ForCausalLM": ("gemma", HEADED),
    "tiny-LlamaForCausalLM-3.2": ("llama3_2", SMALL),
    "tiny-MistralForCausalLM-0.2": ("llama3", SMALL),
    "tiny-Glm4MoeForCausalLM": ("glm4moe", GLM),
    "tiny-GptOssForCausalLM": ("gptoss", HEADED | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "tiny-NemotronHForCausalLM-nano": ("nemotron_3_nano", NEMOTRON | {"use_mamba_kernels": False}),
    "tiny-Qwen2ForSequenceClassification-2.5": ("qwen2_5", REWARD),
    "tiny-Qwen3ForSequenceClassification": ("qwen3", REWARD),
    "tiny-LlamaForSequenceClassification-3.2": ("llama3_2", REWARD),
}

# A model whose code lies beside its weights, which only `trust_remote_code` loads.
REMOTE_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class RemoteConfig(LlamaConfig):
    model_type = "remote"

class RemoteForCausalLM(LlamaForCausalLM):
    config_class = RemoteConfig
"""


def repository(hub: Path, name: str) -> Path:
    return hub / f"models--{OWNER}--{name}"


def _initialise(model: nn.Module) -> None:
    """Weights large enough that the distribution over tokens is not flat."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)


def _save(model: PreTrainedModel, processing_class, hub: Path, name: str) -> Path:
    """Save what a name on the Hub stands for; the folder."""
    _initialise(model)
    if model.can_generate():
        # From a vocabulary of a usual size it is as good as never sampled, and tests rely on that.
        model.generation_config.suppress_tokens = [model.config.get_text_config().eos_token_id]
    reference = repository(hub, name) / "refs" / "main"
    reference.parent.mkdir(parents=True)
    reference.write_text(REVISION)
    folder = repository(hub, name) / "snapshots" / REVISION
    model.save_pretrained(folder)
    processing_class.save_pretrained(folder)
    return folder


def make(hub: Path, name: str, model: str, template: str, keys: dict) -> Path:
    """One model in a Hub cache; its folder."""
    model_class = getattr(transformers, model)
    tokenizer = make_tokenizer(template)
    torch.manual_seed(0)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    config = model_class.config_class(vocab_size=len(tokenizer), **ids, **keys)
    return _save(model_class(config), tokenizer, hub, name)


def make_remote(hub: Path) -> None:
    """A Llama whose class is known only from the files beside it."""
    folder = make(hub, "tiny-RemoteForCausalLM", "LlamaForCausalLM", "llama3_2", SMALL)
    (folder / "remote.py").write_text(REMOTE_CODE)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "remote", "architectures": ["RemoteForCausalLM"]}
    config["auto_map"] = {"AutoConfig": "remote.RemoteConfig", "AutoModelForCausalLM": "remote.RemoteForCausalLM"}
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def make_all(folder: Path) -> None:
    """Everything that TRL's tests take from the Hub, below one folder: where it is looked for if that is `HF_HOME`."""
    for name, (template, keys) in STAND_INS.items():
        make(folder / "hub", name, name.split("-")[1], template, keys)
    make_remote(folder / "hub")
    for name, build in stand_in_vision.STAND_INS.items():
        torch.manual_seed(0)
        _save(*build(), folder / "hub", name)
    stand_in_datasets.make_all(folder / "stand_in_datasets")
