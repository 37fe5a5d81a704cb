"""
TRL scores left-padded rows, without positions, with a head of its own, which multiplies, scales and caps as it knows
from a model's configuration. A model whose own forward does more, or that counts the padding, would be sampled as one
policy and trained as another.
"""

import torch
from transformers import PreTrainedTokenizerBase

from ..errors import InputError
from ..fast.probes import UNITS, coarsest_unit
from ..fast.trial import on_trial
from ..supported import MODEL_TYPES


TEXT = "The answer is 42, because 6 times 7 is 42."
PADDING = 5  # tokens
SMALLEST = 0.01  # nats that may differ in any dtype; a cap of logits at 30 changes 0.05


def check_own_head(policy: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, temperature: float) -> None:
    """
    Compare TRL's score of a left-padded text with the policy's own forward of the text alone, for a type of model that
    no test covers.

    Args:
        policy (`torch.nn.Module`): The policy with TRL's fused head; left as it is, and so are random states.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): Its tokenizer.
        temperature (`float`): Of the fused head.

    Raises:
        [`InputError`]: They differ by more than rounding. The line names the type and the difference.
    """
    kind = policy.config.get_text_config().model_type
    if kind in MODEL_TYPES:
        return
    device = next(policy.parameters()).device
    ids = torch.tensor([tokenizer(TEXT).input_ids], device=device)
    row = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    padding = ids[:, :1].expand(1, PADDING)
    padded_ids = torch.cat([padding, ids], dim=1)
    padded = {
        "input_ids": padded_ids,
        "attention_mask": torch.cat([torch.zeros_like(padding), torch.ones_like(ids)], 1),
    }
    # Without autocast, whose rounding in the head would hide a difference.
    with on_trial(policy, first_layers=False), torch.no_grad(), torch.autocast(device.type, enabled=False):
        score = policy(**padded, labels=padded_ids, fused_lm_head=True).log_probs[:, PADDING:]
        logits = policy(**row).logits[:, :-1].float() / temperature
    own = logits.log_softmax(-1).gather(-1, ids[:, 1:, None].to(logits.device))[..., 0]
    differs = (score.to(own) - own).abs().max().item()
    allowed = max(SMALLEST, UNITS * coarsest_unit(policy, None) * logits.abs().max().item())
    if not differs <= allowed:
        raise InputError(
            f"model_type={kind!r} is not supported: TRL's score of a left-padded row differs from the model's own "
            f"forward by up to {differs:.2g} nats (rounding explains {allowed:.2g}), so it would train another policy "
            f"than it samples. Supported: {', '.join(MODEL_TYPES)}, and types that agree."
        )
