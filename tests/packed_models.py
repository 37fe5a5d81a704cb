"""Tiny models of many families with random weights, padded batches for them, and TRL's scoring of those."""

from contextlib import nullcontext
from importlib.metadata import version
from types import SimpleNamespace

import pytest
import torch
from packaging.version import Version
from peft import LoraConfig, get_peft_model
from tiny_run import sharpen
from transformers import AutoConfig, AutoModelForCausalLM
from trl import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head


# Before, layers with a state do not have the cache whose calls are followed.
needs_states = pytest.mark.skipif(Version(version("transformers")) < Version("5.24"), reason="needs transformers 5.24")

VOCAB = 48
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def build(kind="qwen2", attention="sdpa", **keys):
    """A tiny model of some family with random weights, of a distribution that is not flat."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**SIZES, **keys})
    model = sharpen(AutoModelForCausalLM.from_config(config, attn_implementation=attention))
    with torch.no_grad():
        for name, param in model.named_parameters():
            if param.dim() == 1 and name.endswith("bias"):
                param.normal_(std=0.1)
    return model


def with_head(model):
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return model.train()


def with_adapter(model, **keys):
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], **keys))
    with torch.no_grad():
        for name, param in model.named_parameters():
            if "lora_B" in name:
                param.normal_(std=0.1)
    return model


def padded_logps(model, input_ids, attention_mask, logits_to_keep, compute_entropy=False, autocast=nullcontext):
    """TRL's method itself, on a stand-in for its trainer."""
    stand_in = SimpleNamespace(accelerator=SimpleNamespace(autocast=autocast, is_main_process=True))
    method = GRPOTrainer._get_per_token_logps_and_entropies
    return method(stand_in, model, input_ids, attention_mask, logits_to_keep, compute_entropy=compute_entropy)[:2]


def batch_of(groups, seed=0, masked=(), shuffled=True):
    """A padded batch: `groups` of a prompt's length and its completions' lengths; `masked` ones do not count."""
    generator = torch.Generator().manual_seed(seed)
    start = max(p for p, _ in groups)
    keep = max(1, max(max(c) for _, c in groups))
    rows = []
    masks = []
    for prompt_length, lengths in groups:
        prompt = torch.randint(3, VOCAB, (prompt_length,), generator=generator)
        for length in lengths:
            row = torch.zeros(start + keep, dtype=torch.long)
            row[start - prompt_length : start] = prompt
            row[start : start + length] = torch.randint(3, VOCAB, (length,), generator=generator)
            mask = torch.zeros_like(row)
            mask[start - prompt_length : start + (0 if len(rows) in masked else length)] = 1
            rows.append(row)
            masks.append(mask)
    order = torch.randperm(len(rows), generator=generator) if shuffled else torch.arange(len(rows))
    return torch.stack(rows)[order], torch.stack(masks)[order], keep


def uneven(kind, **keys):
    """A model whose norms and biases are not what they are initialised to, as after training."""
    if kind.endswith(("moe", "mixtral")):
        keys = MOE | keys
    model = build(kind, head_dim=8, sliding_window=None, **keys)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for param in model.parameters():
            if param.dim() == 1:
                param.add_(0.3 * torch.randn(param.shape, generator=generator))
    return with_head(model)
