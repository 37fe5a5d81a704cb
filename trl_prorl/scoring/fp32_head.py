"""Logits in fp32 (`cast_lm_head_to_fp32`) where TRL's cast does not reach: a tied head under an adapter, a frozen copy."""

from collections import Counter

import torch
from accelerate import init_empty_weights
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM


def decoder_dtype(model: nn.Module) -> torch.dtype:
    """The dtype of most parameters of a model, each counted once: its decoder's, whatever its head was cast to."""
    return Counter(param.dtype for param in model.parameters()).most_common(1)[0][0]


def cast_head_to_fp32(model: nn.Module) -> None:
    """
    Let the head of a [`~transformers.PreTrainedModel`], which may have adapters in it but no wrapper around it, compute in
    fp32, in place. Embeddings that share its weight go on giving values of the dtype that they have now.
    """
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    dtype = embeddings.weight.dtype
    head.float()

    def forward(hidden_states):
        bias = None if head.bias is None else head.bias.float()
        return nn.functional.linear(hidden_states.float(), head.weight.float(), bias)

    head.forward = forward
    if embeddings.weight.dtype != dtype:
        embeddings.register_forward_hook(lambda module, args, output: output.to(dtype))


def check_full_model(model, **config_kwargs) -> None:
    """
    Refuse a model whose head TRL does not find, before it is loaded. Without adapters TRL casts policy and reference itself.

    Args:
        model (`str` or [`~transformers.PreTrainedModel`]):
            What the trainer is given.
        config_kwargs:
            How its configuration is loaded.

    Raises:
        `ValueError`: naming the model and the cure.
    """
    if isinstance(model, str):
        config = AutoConfig.from_pretrained(model, **config_kwargs)
        if type(config) not in AutoModelForCausalLM._model_mapping:
            return
        with init_empty_weights():
            model = AutoModelForCausalLM.from_config(config)
    tied = model.config.tie_word_embeddings
    if not hasattr(model, "lm_head") or tied and not hasattr(getattr(model, "model", None), "embed_tokens"):
        raise ValueError(
            f"cast_lm_head_to_fp32=True finds a head as lm_head, and embeddings that share its weight as model.embed_tokens; "
            f"{type(model).__name__} names them otherwise. Train a LoRA adapter, or set cast_lm_head_to_fp32: false."
        )
