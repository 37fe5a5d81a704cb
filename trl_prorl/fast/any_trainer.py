"""`pack(trainer)`: shared prompts for TRL's own `GRPOTrainer`, or a subclass of it."""

import torch
from trl import GRPOTrainer

from ..cli.dropout import check_dropout
from ..errors import InputError
from .acceleration import ties_obstacle
from .comparison import allowed, mean_difference, mixed_dtype
from .families import listing_obstacle
from .packing import PackedScorer
from .prefix import accept_prefixes


ROWS = 4  # of the first batch, which are compared


def pack(trainer: GRPOTrainer) -> None:
    """
    Compute each prompt once for all its completions, without padding, wherever a trainer scores a batch.

    Updates and reference scores have the values and gradients of TRL, up to rounding; the first batch is compared.
    Call it before `trainer.train()`. `ProRLTrainer` does so by itself (`pack_groups`).

    Args:
        trainer ([`~trl.GRPOTrainer`]): A trainer of text and of a family that docs/supported.md lists.

    Raises:
        `ValueError`: The trainer or its model is not supported, dropout is active, or the first batch is off by more
            than rounding.

    Example:

    ```python
    >>> from trl_prorl.fast import pack

    >>> trainer = GRPOTrainer(model, reward_funcs=reward, args=args, train_dataset=rows)
    >>> pack(trainer)
    >>> trainer.train()
    ```
    """
    policy = trainer.accelerator.unwrap_model(trainer.model)  # a reference is of the same family
    obstacle = _trainer_obstacle(trainer) or listing_obstacle(policy, "shared_prompts")
    if obstacle is not None:
        raise InputError(f"pack(trainer) is not supported: {obstacle}")
    check_dropout(policy)
    accept_prefixes(policy)
    trainer._get_per_token_logps_and_entropies = PackedScores(trainer)


def _trainer_obstacle(trainer: GRPOTrainer) -> str | None:
    if hasattr(trainer.args, "pack_groups"):
        return f"{type(trainer).__name__} does so by itself, with pack_groups='on'."
    if trainer._is_vlm:
        return "the model takes images."
    if trainer.aux_loss_enabled:
        return "the load-balancing loss averages over all tokens, prompts and padding included."
    return ties_obstacle(trainer.args)


class PackedScores:
    """
    Stands in for TRL's method that scores a batch.

    Args:
        trainer ([`~trl.GRPOTrainer`]): Its own method scores the rows of the comparison.
    """

    def __init__(self, trainer: GRPOTrainer):
        self.padded = trainer._get_per_token_logps_and_entropies
        self.packed = PackedScorer(trainer.accelerator.autocast)
        self.accelerator = trainer.accelerator
        self.is_compared = False

    def __call__(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **more
    ) -> tuple:
        """Score a batch; TRL's arguments and result. Raises [`InputError`]: packed rows differ."""
        # TRL leaves truncated completions out of the mask.
        counted = attention_mask[:, -logits_to_keep:].any(1).nonzero()[:ROWS, 0]
        if not self.is_compared and len(counted):
            self._compare(model, input_ids[counted], attention_mask[counted], logits_to_keep)
            self.is_compared = True
        return self.packed(model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, **more)

    @torch.no_grad()
    def _compare(self, model, *batch) -> None:
        padded, packed = (score(model, *batch)[0] for score in (self.padded, self.packed))
        _, mask, length = batch
        counts = mask[:, -length:].bool()
        differs = mean_difference(packed[counts], padded[counts])
        limit = allowed(model, mixed_dtype(self.accelerator))
        if not differs <= limit:
            raise InputError(
                f"pack(trainer): scores in packed rows differ from TRL's by {differs:.2g} nats per token (rounding "
                f"explains {limit:.2g}). Train without pack."
            )
