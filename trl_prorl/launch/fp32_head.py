"""
The LM head in fp32 (`cast_lm_head_to_fp32`) where TRL's own cast does not serve: a tied head under an adapter, and a
frozen copy, which TRL does not cast.
"""

from collections import Counter

import torch
from accelerate import init_empty_weights
from peft.utils.other import TrainableTokensWrapper
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from ..weights import named_class


def decoder_dtype(model: nn.Module) -> torch.dtype:
    """
    Return the dtype of most parameters of a model, each counted once: that of its decoder, whatever the dtype of its
    head.
    """
    counts = Counter(param.dtype for param in model.parameters())
    dtype, _ = counts.most_common(1)[0]
    return dtype


def cast_head_to_fp32(model: nn.Module) -> None:
    """
    Make the head of a [`~transformers.PreTrainedModel`] compute in fp32, in place. The model may contain adapters but
    must have no wrapper. Embeddings that share the head's weight keep returning their present dtype.
    """
    head = model.get_output_embeddings()
    embeddings = model.get_input_embeddings()
    dtype = embeddings.weight.dtype
    head.float()

    def forward(hidden_states):
        bias = None if head.bias is None else head.bias.float()
        return nn.functional.linear(hidden_states.float(), head.weight.float(), bias)

    head.forward = forward
    if embeddings.weight.dtype != dtype:
        embeddings.register_forward_hook(lambda module, args, output: output.to(dtype))


def give_bias(model: nn.Module) -> None:
    """
    Give a head of which some rows are trained (PEFT's `trainable_token_indices`, also of embeddings that share its
    weight) the attribute `bias`, which TRL reads and PEFT's wrapper lacks.
    """
    head = model.get_output_embeddings()
    if isinstance(head, TrainableTokensWrapper):
        vars(head)["bias"] = head.original_module.bias  # not as a second parameter


def check_full_model(model, **config_kwargs) -> None:
    """
    Raise an error for a model whose head TRL does not find, before it is loaded (with these arguments for its
    configuration). Without adapters TRL itself casts policy and reference. Raises `ValueError`: naming the model and
    the cure.
    """
    if isinstance(model, str):
        config = AutoConfig.from_pretrained(model, **config_kwargs)
        if type(config) not in AutoModelForCausalLM._model_mapping:
            return
        with init_empty_weights():
            model = named_class(config)._from_config(config)
    tied = model.config.tie_word_embeddings
    if not hasattr(model, "lm_head") or tied and not hasattr(getattr(model, "model", None), "embed_tokens"):
        raise ValueError(
            "cast_lm_head_to_fp32=True needs a head named lm_head, and tied embeddings named model.embed_tokens, "
            f"which {type(model).__name__} does not have. Train a LoRA adapter, or set cast_lm_head_to_fp32: false."
        )
