"""Entropy watch: a collapsed policy samples the same text every time, and no longer learns."""

import logging
from collections.abc import Mapping
from typing import Any

from ..parts import Part, make_event
from ..run_files import ENTROPY_COLLAPSE


logger = logging.getLogger(__name__)


class EntropyWatch(Part):
    """
    Warns when the mean entropy was below a floor, in nats per token, for `patience` consecutive optimizer steps.
    `stop` ends the run.
    """

    def __init__(self, floor: float, patience: int, stop: bool = False):
        self.floor = floor
        self.patience = patience
        self.stop = stop
        self.begin()

    def begin(self) -> None:
        self.below = 0

    def observe(self, entropy: float | None) -> bool:
        """Return whether this step completes a collapse: true once, and again only after the entropy has recovered."""
        if entropy is None:
            return False
        self.below = self.below + 1 if entropy < self.floor else 0
        return self.below == self.patience

    def row(self, step: int, row: Mapping[str, float]) -> dict[str, Any] | None:
        """Return the event of a collapse that this step completes."""
        entropy = row.get("entropy")
        if not self.observe(entropy):
            return None
        logger.warning(
            "Entropy collapse at step %d: mean entropy %.4g nats per token, below entropy_floor=%.4g for %d steps.",
            step,
            entropy,
            self.floor,
            self.patience,
        )
        reason = f"entropy below entropy_floor for {self.patience} steps"
        return {
            **make_event(ENTROPY_COLLAPSE, step, step, reason, entropy, self.floor),
            "action": "stop" if self.stop else "log",
            "last_good": max(0, step - self.patience),
        }

    def state_dict(self) -> dict[str, Any]:
        return {"below": self.below}

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        self.below = state["below"]
