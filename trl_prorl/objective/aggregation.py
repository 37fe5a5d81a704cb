"""How TRL's loss types turn per-token losses into one number: every aggregation is a weighted sum over tokens.

Writing it as weights keeps it linear, so a penalty added afterwards is normalised exactly as if TRL's own loss had
contained it.
"""

import torch


WINDOW_LOSSES = ("dapo", "cispo", "vespo")  # they average over the tokens of a whole accumulation window


def token_weights(
    mask: torch.Tensor,
    loss_type: str,
    accumulation_steps: float = 1.0,
    max_completion_length: int | None = None,
    items_per_window: torch.Tensor | float | None = None,
) -> torch.Tensor:
    """
    Weights w such that TRL's loss of a micro-batch is Σ w · per_token_loss.

    Args:
        mask (`torch.Tensor` of shape `(B, T)`):
            1 where a token counts.
        loss_type (`str`):
            TRL's `loss_type`.
        accumulation_steps (`float`, *optional*, defaults to `1.0`):
            Micro-batches of one optimizer step (1 in evaluation).
        max_completion_length (`int`, *optional*):
            Needed by `dr_grpo` (arXiv 2503.20783), which divides by a constant length.
        items_per_window (`torch.Tensor` or `float`, *optional*):
            Tokens of one accumulation window on this process. Needed by the losses that average over all tokens of an
            optimizer step: `dapo` (arXiv 2503.14476), `cispo`, `vespo`.

    Returns:
        `torch.Tensor` of shape `(B, T)`.
    """
    mask = mask.float()
    if loss_type in ("grpo", "sapo"):
        return mask / mask.sum(-1, keepdim=True).clamp(min=1.0) / mask.size(0) / accumulation_steps
    if loss_type == "bnpo":
        return mask / mask.sum().clamp(min=1.0) / accumulation_steps
    if loss_type == "dr_grpo":
        return mask / (mask.size(0) * max_completion_length) / accumulation_steps
    if loss_type in WINDOW_LOSSES:
        return mask / items_per_window
    if loss_type == "luspo":
        return mask / mask.size(0) / accumulation_steps
    raise ValueError(f"loss_type={loss_type!r} is not one whose aggregation is known here.")
