"""`pack(trainer)`: shared prompts for TRL's own `GRPOTrainer`, or a subclass of it."""

import torch
from trl import GRPOTrainer

from ..errors import InputError
from .families import listing_obstacle
from .first_batch import allowed, mean_difference
from .packing import PackedScorer
from .prefix import accept_prefixes


ROWS = 4  # of the first batch, which are compared


def pack(trainer: GRPOTrainer) -> None:
    """
    Compute each prompt once for all its completions, and no padding, wherever a trainer scores a batch.

    Updates and reference scores have the values and gradients of TRL, up to rounding; the first batch is compared.
    Call it before `trainer.train()`. `ProRLTrainer` does so by itself (`pack_groups`).

    Args:
        trainer ([`~trl.GRPOTrainer`]): A trainer of text, of a family that docs/supported.md lists, with an adapter or
            without.

    Raises:
        [`InputError`]: The trainer or its model is not supported, or the first batch is off by more than rounding.

    Example:

    ```python
    >>> from trl_prorl.fast import pack

    >>> trainer = GRPOTrainer(model, reward_funcs=reward, args=args, train_dataset=rows)
    >>> pack(trainer)
    >>> trainer.train()
    ```
    """
    models = [trainer.accelerator.unwrap_model(trainer.model)]
    if trainer.ref_model is not None:
        models.append(trainer.accelerator.unwrap_model(trainer.ref_model))
    obstacles = [_trainer_obstacle(trainer), *(listing_obstacle(model, "shared_prompts") for model in models)]
    for obstacle in filter(None, obstacles):
        raise InputError(f"pack(trainer) is not supported: {obstacle}")
    for model in models:
        accept_prefixes(model)
    trainer._get_per_token_logps_and_entropies = PackedScores(trainer)


def _trainer_obstacle(trainer: GRPOTrainer) -> str | None:
    """Return why a trainer cannot be packed, in one sentence; `None` if it can."""
    if trainer._is_vlm:
        return "the model takes images."
    if trainer.aux_loss_enabled:
        return "the load-balancing loss averages over all tokens, prompts and padding included."
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        return "the weights are sharded."
    return None


class PackedScores:
    """
    Stands in for TRL's method that scores a batch.

    Args:
        trainer ([`~trl.GRPOTrainer`]): Its own method scores the rows of the comparison.
    """

    def __init__(self, trainer: GRPOTrainer):
        self.padded = trainer._get_per_token_logps_and_entropies
        self.packed = PackedScorer(None, trainer.accelerator.autocast)
        self.precision = trainer.accelerator.mixed_precision
        self.is_compared = False

    def __call__(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **more
    ) -> tuple:
        """Score a batch; TRL's arguments and result. Raises [`InputError`]: packed rows differ."""
        if not self.is_compared:
            self._compare(model, input_ids[:ROWS], attention_mask[:ROWS], logits_to_keep)
            self.is_compared = True
        return self.packed(model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, **more)

    @torch.no_grad()
    def _compare(self, model, *batch) -> None:
        padded, packed = (score(model, *batch)[0] for score in (self.padded, self.packed))
        _, mask, length = batch
        counts = mask[:, -length:].bool()
        differs = mean_difference(packed[counts], padded[counts])
        limit = allowed(model, {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.precision))
        if not differs <= limit:
            raise InputError(
                f"pack(trainer): scores in packed rows differ from TRL's by {differs:.2g} nats per token (rounding "
                f"explains {limit:.2g}). Train without pack."
            )
