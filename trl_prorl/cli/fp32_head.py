"""
The LM head in fp32 (`cast_lm_head_to_fp32`) in cases that TRL does not support: a tied head under an adapter, and a
frozen copy.
"""

from collections import Counter

import torch
from peft.utils.other import TrainableTokensWrapper
from torch import nn


def decoder_dtype(model: nn.Module) -> torch.dtype:
    """Return the dtype of most parameters of a model: its decoder's, not its head's."""
    counts = Counter(param.dtype for param in model.parameters())
    dtype, _ = counts.most_common(1)[0]
    return dtype


def cast_head_to_fp32(model: nn.Module) -> None:
    """
    Make the head of a [`~transformers.PreTrainedModel`] (with adapters, but without a wrapper) compute in fp32, in
    place. Embeddings that share its weight keep returning their present dtype.
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
    Give a head with trained rows (PEFT's `trainable_token_indices`, also of tied embeddings) the attribute `bias`,
    which TRL reads and PEFT's wrapper lacks.
    """
    head = model.get_output_embeddings()
    if isinstance(head, TrainableTokensWrapper):
        vars(head)["bias"] = head.original_module.bias  # not as a second parameter
