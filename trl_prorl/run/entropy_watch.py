"""Entropy watch: a policy that has collapsed writes the same thing whatever one samples, and no longer learns."""

from typing import Any


class EntropyWatch:
    """
    Says when the mean entropy has stayed below a floor.

    Args:
        floor (`float`):
            Nats per token.
        patience (`int`):
            Consecutive optimizer steps below the floor that make a collapse.
    """

    def __init__(self, floor: float, patience: int):
        self.floor, self.patience = floor, patience
        self.below = 0

    def observe(self, entropy: float | None) -> bool:
        """Whether this step completes a collapse: true once, and again only after the entropy has recovered."""
        if entropy is None:
            return False
        self.below = self.below + 1 if entropy < self.floor else 0
        return self.below == self.patience

    def state_dict(self) -> dict[str, Any]:
        return {"below": self.below}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.below = state["below"]
