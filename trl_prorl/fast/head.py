"""
LM heads in place of TRL's.

Logits in fp32 (`cast_lm_head_to_fp32`) for heads that TRL does not cast: a tied head under an adapter, and a frozen
copy.

Contiguous states of the last token (`contiguous_states`), without which a CPU's bf16 head is slow.

Log-probabilities by a frozen head on a CPU, as attention of a state over the vocabulary. TRL's fused head takes about
ten passes over memory. A state h that attends to the head's rows W, as keys and values, gives log Z = log Σ exp(h·W_j
/ T) and w = Σ p_j W_j in one pass:

    log p_t = h·W_t / T − log Z        entropy = log Z − h·w / T        ∂ log p_t / ∂h = (W_t − w) / T
"""

import functools
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from trl.trainer.utils import FusedCausalLMOutput


# configuration keys of other changes to logits in TRL's fused head
OTHER_LOGITS = "final_logit_softcapping logit_scale output_multiplier lm_head_multiplier logits_scaling".split()


class FrozenHead(torch.autograd.Function):
    """Computes log-probabilities `(N,)` with gradient, and entropies `(N,)` without."""

    @staticmethod
    def forward(ctx, states, weight, labels, scale):
        rows = weight[None, None]
        attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        mean, log_z = attend(states[None, None], rows, rows, scale=scale)
        mean = mean[0, 0].float()
        log_z = log_z.reshape(-1)
        wide = states.float()
        label_rows = weight[labels].float()
        ctx.save_for_backward((label_rows - mean) * scale)
        ctx.dtype = states.dtype
        entropy = log_z - (wide * mean).sum(-1) * scale
        ctx.mark_non_differentiable(entropy)
        logps = (wide * label_rows).sum(-1) * scale - log_z
        return logps, entropy

    @staticmethod
    def backward(ctx, gradient, _):
        (direction,) = ctx.saved_tensors
        return (gradient[:, None] * direction).to(ctx.dtype), None, None, None


def add_frozen_head(model: nn.Module, temperature: float, is_wanted: Callable[[], bool] = lambda: True) -> None:
    """
    Let an unwrapped model with TRL's fused LM head (`trl.trainer.utils.add_fused_lm_head`) score packed rows by
    [`FrozenHead`] if the result is the same, and if `is_wanted` at that forward. Entropies then have no gradient. The
    temperature is that of the fused head.
    """
    fused = model.forward
    plain = all(getattr(model.config, key, None) is None for key in OTHER_LOGITS)

    @functools.wraps(type(model).forward)
    def forward(self, *args, fused_lm_head=False, labels=None, **kwargs):
        head = self.get_output_embeddings()
        is_packed = kwargs.get("prefix_layout") is not None
        if not (fused_lm_head and plain and is_packed and can_attend(head) and is_wanted()):
            if fused_lm_head:
                kwargs["fused_lm_head"] = True
            if labels is not None:
                kwargs["labels"] = labels
            return fused(*args, **kwargs)
        mask = labels[:, 1:] != -100
        if not mask.any():
            return fused(*args, fused_lm_head=True, labels=labels, **kwargs)
        kwargs["use_cache"] = False
        states = self.base_model(*args, **kwargs).last_hidden_state[:, :-1][mask]
        mixed = torch.is_autocast_enabled("cpu")
        dtype = torch.get_autocast_dtype("cpu") if mixed else head.weight.dtype
        logps, entropies = FrozenHead.apply(
            states.to(dtype), head.weight.to(dtype), labels[:, 1:][mask], 1 / temperature
        )
        return FusedCausalLMOutput(
            log_probs=logps.new_zeros(mask.shape).masked_scatter(mask, logps),
            entropy=entropies.new_zeros(mask.shape).masked_scatter(mask, entropies),
        )

    model.forward = types.MethodType(forward, model)


def can_attend(head: nn.Module) -> bool:
    """Return whether a head is a plain linear layer without gradient on a CPU."""
    return (
        type(head) is nn.Linear
        and "forward" not in vars(head)  # replaced, to cast
        and head.bias is None
        and not head.weight.requires_grad
        and head.weight.device.type == "cpu"
        and head.weight.dtype in (torch.float32, torch.bfloat16)
    )


@contextmanager
def contiguous_states(model) -> Iterator[None]:
    """
    Make the states for a CPU's bf16 head contiguous: with AVX512-BF16, torch 2.13 multiplies each row of `generate`'s
    slice by a copy of the head, for six rows eighty times as long.
    """
    head = model.get_output_embeddings()
    weight = getattr(head, "weight", None)
    if weight is None or weight.device.type != "cpu" or weight.dtype != torch.bfloat16:
        yield
        return
    handle = head.register_forward_pre_hook(lambda module, args: (args[0].contiguous(), *args[1:]))
    try:
        yield
    finally:
        handle.remove()
