"""When to reset: small objects that watch numbers and answer with a reason or `None`. Pure and serialisable."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Reason:
    """
    Why a reset is requested.

    Args:
        reason (`str`):
            Name of the trigger that fired.
        value (`float`):
            What it saw.
        threshold (`float`):
            What it compared it with.
        step (`int`):
            Optimizer steps done when it fired.
    """

    reason: str
    value: float
    threshold: float
    step: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Periodic:
    """
    Fires when the number of optimizer steps done is a multiple of `every`.

    ProRL v2 resets its reference every 200 to 500 steps.
    """

    every: int

    def observe_step(self, step: int) -> Reason | None:
        """`step` is the number of optimizer steps done, from 1."""
        if step > 0 and step % self.every == 0:
            return Reason("periodic", value=step, threshold=self.every, step=step)
        return None
