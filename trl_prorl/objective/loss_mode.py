"""`loss_mode: no_ratio`: TRL's loss without the ratio to the policy that sampled."""

from collections.abc import Mapping

import torch

from .anchors import logps_key


def without_ratio(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """
    A batch from which TRL's loss takes a ratio of 1, whose gradient is that of the log-probability: without π_old TRL
    takes the policy itself. TRL's mask of samples that are too far off policy still compares with the policy that
    sampled.
    """
    changed = dict(batch)
    old = changed.pop(logps_key("old"), None)
    if old is not None:
        changed.setdefault("sampling_per_token_logps", old)
    return changed
