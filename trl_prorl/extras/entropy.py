"""Entropy watch: a collapsed policy samples the same text every time, and no longer learns."""

import logging
from collections.abc import Mapping
from typing import Any

from ..parts import Part, make_event
from ..run_files import ENTROPY_COLLAPSE


logger = logging.getLogger(__name__)


class EntropyWatch(Part):
    """
    Warns when the mean entropy was below `entropy_floor`, in nats per token, for `entropy_patience` consecutive
    optimizer steps. `entropy_stop` ends the run.
    """

    remembers = ("below",)

    def __init__(self, args):
        self.floor = args.entropy_floor
        self.patience = args.entropy_patience
        self.action = "stop" if args.entropy_stop else "log"
        self.begin()

    def begin(self) -> None:
        self.below = 0

    def row(self, step: int, row: Mapping[str, float]) -> dict[str, Any] | None:
        """Return the event of a collapse at this step: once, and again only after a recovery."""
        entropy = row.get("entropy")
        if entropy is None:
            return None
        self.below = self.below + 1 if entropy < self.floor else 0
        if self.below != self.patience:
            return None
        logger.warning(
            "Entropy collapse at step %d: mean entropy %.4g nats per token, below entropy_floor=%.4g for %d steps.",
            step,
            entropy,
            self.floor,
            self.patience,
        )
        reason = f"entropy below entropy_floor for {self.patience} steps"
        event = make_event(ENTROPY_COLLAPSE, step, step, reason, entropy, self.floor)
        return {**event, "action": self.action, "last_good": max(0, step - self.patience)}

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        self.below = 0 if changed else state["below"]  # report the collapse, or stop, again
