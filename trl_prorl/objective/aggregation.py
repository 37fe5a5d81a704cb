"""How TRL's loss types turn per-token losses into one number: every aggregation is a weighted sum over tokens.

Writing it as weights keeps it linear, so a penalty added afterwards is normalised exactly as if TRL's own loss had
contained it.
"""

from collections.abc import Mapping

import torch

from .anchors import OldPolicyAnchor
from .masks import completion_mask


WINDOW_LOSSES = ("dapo", "cispo", "vespo")  # they average over the tokens of a whole accumulation window


class Aggregation:
    """
    Aggregates the loss of a run as TRL does, which counts the tokens of a window over all processes.

    Args:
        args ([`ProRLConfig`]): The configuration.
        processes (`int`): The number of processes.
    """

    def __init__(self, args, processes: int):
        self.args = args
        self.processes = processes

    def weights(self, batch: Mapping[str, torch.Tensor], accumulation: float | None) -> torch.Tensor:
        """
        Compute the [`token_weights`] of a micro-batch.

        Args:
            batch (`Mapping[str, torch.Tensor]`): A micro-batch, with the number of tokens in its window.
            accumulation (`float`, *optional*): Micro-batches of this optimizer step; `None` in an evaluation.

        Returns `torch.Tensor` of shape `(B, T)`.
        """
        args = self.args
        window = batch["num_items_in_batch"].clamp(min=1.0) / self.processes
        if accumulation is not None:
            window = window * accumulation / args.steps_per_generation
        mask = completion_mask(batch)
        return token_weights(mask, args.loss_type, accumulation or 1.0, args.max_completion_length, window)

    def logged(self, term: torch.Tensor, accumulation: float | None) -> torch.Tensor:
        """
        Convert a term of the loss into what TRL logs: that of a micro-batch by itself, or its share in the window that
        the loss averages over. `term` is a scalar; `accumulation` as in [`Aggregation.weights`].
        """
        by_itself = accumulation is not None and self.args.loss_type not in WINDOW_LOSSES
        return term * accumulation if by_itself else term


def token_weights(
    mask: torch.Tensor,
    loss_type: str,
    accumulation_steps: float = 1.0,
    max_completion_length: int | None = None,
    items_per_window: torch.Tensor | float | None = None,
) -> torch.Tensor:
    """
    Compute the weights w such that TRL's loss of a micro-batch is Σ w · per_token_loss.

    Args:
        mask (`torch.Tensor` of shape `(B, T)`): 1 where a token counts.
        loss_type (`str`): TRL's.
        accumulation_steps (`float`, *optional*): Micro-batches of one optimizer step; 1 in an evaluation.
        max_completion_length (`int`, *optional*):
            What `dr_grpo` (arXiv 2503.20783) divides by instead of a number of tokens.
        items_per_window (`torch.Tensor` or `float`, *optional*): Tokens of one accumulation window on this process,
            for the losses that average over all of them: `dapo` (arXiv 2503.14476), `cispo`, `vespo`.

    Returns `torch.Tensor` of shape `(B, T)`. Raises `ValueError`: the loss type is not known.
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
    raise ValueError(f"loss_type={loss_type!r} is not supported: its aggregation is unknown.")


def without_ratio(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """
    Make a batch for `loss_mode: no_ratio`: without π_old TRL takes the policy itself, a ratio of 1, whose gradient is
    that of the log-probability. TRL's mask of samples that are too far off policy still compares with the policy that
    sampled.
    """
    changed = dict(batch)
    old = changed.pop(OldPolicyAnchor.column, None)
    if old is not None:
        changed.setdefault("sampling_per_token_logps", old)
    return changed
