"""Signal watch: if all completions of every prompt get the same reward, batch after batch, there is no gradient."""

import logging
from collections.abc import Mapping
from typing import Any

import torch

from ..objective.advantages import UNGROUPED
from ..objective.masks import completion_mask
from ..parts import Part, make_event
from ..record.run_files import NO_SIGNAL
from .outcome import groups_without_signal


logger = logging.getLogger(__name__)

PATIENCE = 20  # generation batches
REASON = "in every group all completions got the same reward, so the rewards give no gradient"
CURE = (
    "Look at the completions (log_completions: true), the rewards they get, and the pass rate (trl-prorl preflight)."
)


class SignalWatch(Part):
    """
    Warns when `PATIENCE` generation batches in a row had no signal, and again after twice as many, and so on.

    A batch has a signal if a completion in the loss belongs to a group whose rewards differ.

    Args:
        args (`ProRLConfig`), accelerator (`Accelerator`): Those of the run.
        weights (`torch.Tensor` of shape `(F,)`): Of the reward functions.
        group_size (`int`): Completions of a prompt.
    """

    may_join = True

    def __init__(self, args, accelerator, weights: torch.Tensor, group_size: int):
        self.args = args
        self.accelerator = accelerator
        self.weights = weights
        self.group_size = group_size
        self.begin()

    def begin(self) -> None:
        self.batches = 0
        self.silent = 0  # the newest of them, in a row
        self._is_due = False

    @property
    def never_had_signal(self) -> bool:
        """Return whether no batch so far had a signal."""
        return self.silent == self.batches > 0

    def batch(self, batch: Mapping[str, torch.Tensor], *measured: Any) -> None:
        counts = completion_mask(batch).any(dim=1)
        rewards, counts = self.accelerator.gather((batch["rewards"], counts))
        self.observe(rewards, counts)

    def observe(self, rewards: torch.Tensor, counts: torch.Tensor) -> None:
        """
        Take a batch of N completions by F functions.

        Args:
            rewards (`torch.Tensor` of shape `(N, F)`): NaN where a function does not apply.
            counts (`torch.Tensor` of shape `(N,)`): Whether a completion has tokens in the loss.
        """
        size = self.group_size
        if self.args.advantage_estimator in UNGROUPED:
            size = len(rewards)
        silent = groups_without_signal(rewards, size, self.weights, self.args.multi_objective_aggregation)
        has_signal = (counts & ~silent.repeat_interleave(size)).any().item()
        self.batches += 1
        self.silent = 0 if has_signal else self.silent + 1
        doublings = self.silent / PATIENCE
        self._is_due = doublings >= 1 and doublings.is_integer() and int(doublings).bit_count() == 1

    def row(self, step: int, row: Mapping[str, float]) -> dict[str, Any] | None:
        if not self._is_due:
            return None
        self._is_due = False
        self.warn(step)
        return make_event(NO_SIGNAL, step, step, REASON, self.silent, PATIENCE)

    def warn(self, step: int) -> None:
        """Warn that the newest batches had no signal."""
        batches = "the generation batch" if self.silent == 1 else f"{self.silent} generation batches in a row"
        logger.warning("No signal in %s up to step %d: %s. %s", batches, step, REASON, CURE)

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches, "silent": self.silent}

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        self.batches = state["batches"]
        self.silent = state["silent"]
