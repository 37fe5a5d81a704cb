"""Logits in fp32 (`cast_lm_head_to_fp32`) where TRL does not cast: a tied head under an adapter, a frozen copy."""

from collections import Counter

import torch
from accelerate import init_empty_weights
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM


def decoder_dtype(model: nn.Module) -> torch.dtype:
    """
    The dtype of most parameters of a model, each counted once: that of its decoder, whatever the dtype of its head.
    """
    return Counter(param.dtype for param in model.parameters()).most_common(1)[0][0]


def cast_head_to_fp32(model: nn.Module) -> None:
    """
    Make the head of a [`~transformers.PreTrainedModel`] compute in fp32, in place. The model may contain adapters but
    must have no wrapper. Embeddings that share the head's weight keep returning their present dtype.
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
    Refuse a model whose head TRL does not find, before it is loaded (with these arguments for its configuration).
    Without adapters TRL itself casts policy and reference. Raises `ValueError`: naming the model and the cure.
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
            "cast_lm_head_to_fp32=True finds a head as lm_head, and embeddings that share its weight as "
            f"model.embed_tokens; {type(model).__name__} names them otherwise. Train a LoRA adapter, or set "
            "cast_lm_head_to_fp32: false."
        )
