"""
The LM head in fp32 (`cast_lm_head_to_fp32`) where TRL does not cast it: a head under an adapter, whose tied embeddings
TRL looks for in the adapter's wrapper, and a frozen copy.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft import PeftModel
from peft.utils.other import TrainableTokensWrapper
from torch import nn
from trl.trainer.utils import add_fused_lm_head


@contextmanager
def without_cast(args: Any, is_adapted: bool) -> Iterator[None]:
    """Context in which TRL's trainer does not cast the head of a model with an adapter."""
    casts_head = args.cast_lm_head_to_fp32
    args.cast_lm_head_to_fp32 = casts_head and not is_adapted
    try:
        yield
    finally:
        args.cast_lm_head_to_fp32 = casts_head


def prepare_head(policy: PeftModel, temperature: float, casts_head: bool) -> None:
    """Let TRL score with the head of a policy made in [`without_cast`], and cast it."""
    head = policy.get_output_embeddings()
    if isinstance(head, TrainableTokensWrapper):
        # PEFT's wrapper (`trainable_token_indices`) lacks this attribute, which TRL reads. Not as a second parameter.
        vars(head)["bias"] = head.original_module.bias
    if casts_head:
        model = policy.get_base_model()
        cast_head_to_fp32(model)
        add_fused_lm_head(model, temperature, cast_lm_head_to_fp32=True, outputs=("log_probs", "entropy"))


def cast_head_to_fp32(model: nn.Module) -> None:
    """Make a head compute in fp32, in place. Embeddings that share its weight return their usual dtype."""
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


def decoder_dtype(model: nn.Module) -> torch.dtype:
    """Return the dtype of most parameters of a model: its decoder's, not its head's."""
    counts = Counter(param.dtype for param in model.parameters())
    dtype, _ = counts.most_common(1)[0]
    return dtype
