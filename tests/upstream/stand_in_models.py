"""Tiny models with random weights under the names of TRL's test models, in a folder laid out as a Hub cache.

With that folder as `HF_HOME` and the Hub switched off, `from_pretrained` finds them with nothing patched.
"""

import json
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import stand_in_vision
import torch
import transformers
from stand_in_tokenizers import make_tokenizer
from torch import nn
from transformers import PreTrainedModel


OWNER = "trl-internal-testing"
REVISION = "0" * 40  # stands for a commit

SMALL = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
SMALL |= {"intermediate_size": 32, "max_position_embeddings": 4096}
# A scalar reward needs a wider network to tell completions apart.
REWARD = {**SMALL, "hidden_size": 16, "num_labels": 1}


@dataclass(frozen=True)
class StandIn:
    """One model: its name on the Hub, its class in transformers, its chat template, what its config is made of."""

    name: str
    model: str
    template: str
    config: dict = field(default_factory=lambda: SMALL)


STAND_INS = (
    StandIn("tiny-Qwen2ForCausalLM-2.5", "Qwen2ForCausalLM", "qwen2_5"),
    StandIn("tiny-Qwen3ForCausalLM", "Qwen3ForCausalLM", "qwen3", {**SMALL, "head_dim": 8}),
    StandIn(
        "tiny-Qwen3MoeForCausalLM",
        "Qwen3MoeForCausalLM",
        "qwen3",
        {**SMALL, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    ),
    StandIn("tiny-Cohere2ForCausalLM", "Cohere2ForCausalLM", "cohere2", {**SMALL, "logit_scale": 1.0}),
    StandIn("tiny-Gemma2ForCausalLM", "Gemma2ForCausalLM", "gemma", {**SMALL, "head_dim": 8}),
    StandIn("tiny-LlamaForCausalLM-3.2", "LlamaForCausalLM", "llama3_2"),
    StandIn("tiny-MistralForCausalLM-0.2", "MistralForCausalLM", "llama3"),
    StandIn(
        "tiny-Glm4MoeForCausalLM",
        "Glm4MoeForCausalLM",
        "glm4moe",
        {**SMALL, "head_dim": 2, "moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2}
        | {"attention_bias": True, "use_qk_norm": True},
    ),
    StandIn(
        "tiny-GptOssForCausalLM",
        "GptOssForCausalLM",
        "gptoss",
        {**SMALL, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    StandIn(
        "tiny-NemotronHForCausalLM-nano",
        "NemotronHForCausalLM",
        "nemotron_3_nano",
        {"hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 32}
        | {"layers_block_type": ["mamba", "attention", "moe"], "mamba_num_heads": 8, "mamba_head_dim": 4}
        | {"mamba_n_groups": 1, "ssm_state_size": 16, "mamba_d_conv": 4, "mamba_expand": 2, "n_routed_experts": 4}
        | {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 32}
        | {"use_mamba_kernels": False},
    ),
    StandIn("tiny-Qwen2ForSequenceClassification-2.5", "Qwen2ForSequenceClassification", "qwen2_5", REWARD),
    StandIn("tiny-Qwen3ForSequenceClassification", "Qwen3ForSequenceClassification", "qwen3", REWARD),
    StandIn("tiny-LlamaForSequenceClassification-3.2", "LlamaForSequenceClassification", "llama3_2", REWARD),
)

# A model whose code lies beside its weights, which only `trust_remote_code` loads.
REMOTE_CODE = {
    "configuration_remote.py": """
        from transformers import LlamaConfig


        class RemoteConfig(LlamaConfig):
            model_type = "remote"
        """,
    "modeling_remote.py": """
        from transformers import LlamaForCausalLM

        from .configuration_remote import RemoteConfig


        class RemoteForCausalLM(LlamaForCausalLM):
            config_class = RemoteConfig
        """,
}


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


def make(stand_in: StandIn, hub: Path) -> Path:
    """One model in a Hub cache; its folder."""
    model_class = getattr(transformers, stand_in.model)
    tokenizer = make_tokenizer(stand_in.template)
    torch.manual_seed(0)
    config = model_class.config_class(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        **stand_in.config,
    )
    return _save(model_class(config), tokenizer, hub, stand_in.name)


def make_remote(hub: Path) -> None:
    """A Llama whose class is known only from the files beside it."""
    folder = make(StandIn("tiny-RemoteForCausalLM", "LlamaForCausalLM", "llama3_2"), hub)
    for name, text in REMOTE_CODE.items():
        (folder / name).write_text(textwrap.dedent(text).lstrip())
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "remote"
    config["architectures"] = ["RemoteForCausalLM"]
    config["auto_map"] = {
        "AutoConfig": "configuration_remote.RemoteConfig",
        "AutoModelForCausalLM": "modeling_remote.RemoteForCausalLM",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def make_all(hub: Path) -> None:
    """Fill a Hub cache with every stand-in."""
    for stand_in in STAND_INS:
        make(stand_in, hub)
    make_remote(hub)
    for name, build in stand_in_vision.STAND_INS.items():
        torch.manual_seed(0)
        _save(*build(), hub, name)
