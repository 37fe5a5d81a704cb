"""The effect of a reset on the learning rate: start the schedule again, or warm up again."""

import copy
from typing import Any

import torch

from .optimizer_state import inner_of


def snapshot_schedule(scheduler) -> dict[str, Any]:
    """Take the state that `restart_schedule` needs, of a schedule that has not been stepped."""
    rates = [group["lr"] for group in scheduler.optimizer.param_groups]
    return {"state": copy.deepcopy(scheduler.state_dict()), "lrs": rates}


def restart_schedule(scheduler, start: dict[str, Any]) -> None:
    """
    Put a schedule, and the learning rates it has set, back to its start: warm-up and decay run again.

    Args:
        scheduler: The schedule, or Accelerate's wrapper of it.
        start (`dict[str, Any]`): From [`snapshot_schedule`].
    """
    inner = getattr(scheduler, "scheduler", scheduler)
    base_rates = getattr(inner, "base_lrs", None)  # a roll-back may have lowered them
    inner.load_state_dict(copy.deepcopy(start["state"]))
    for place, group in enumerate(inner.optimizer.param_groups):
        rate = start["lrs"][place]
        if base_rates is not None:
            base_rate_then = inner.base_lrs[place]
            if base_rate_then:
                rate *= base_rates[place] / base_rate_then
        group["lr"] = rate
    if base_rates is not None:
        inner.base_lrs = base_rates


def rewarmup_factor(updates: int | None, steps: int) -> float:
    """
    Return the factor on the learning rate of the next update after a reset: 1/steps, 2/steps, …, 1.

    Args:
        updates (`int`, *optional*): Updates since the reset; `None` without a reset.
        steps (`int`): 0 and 1 have no effect.
    """
    if updates is None or steps <= 1:
        return 1.0
    return min(1.0, (updates + 1) / steps)


class Rewarmup:
    """
    Scales an optimizer's learning rates during each update, see `rewarmup_factor`, and leaves them as the schedule set
    them.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, steps: int):
        self.steps = steps
        self.updates: int | None = None
        self._rates: list[float] = []
        inner = inner_of(optimizer)
        inner.register_step_pre_hook(self._before)
        inner.register_step_post_hook(self._after)

    @property
    def factor(self) -> float:
        """The factor on the next update."""
        return rewarmup_factor(self.updates, self.steps)

    def begin(self) -> None:
        """Begin the warm-up: a reset was applied."""
        self.updates = 0

    def _before(self, optimizer, args, kwargs) -> None:
        factor = self.factor
        self._rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * factor

    def _after(self, optimizer, args, kwargs) -> None:
        for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate
        if self.updates is not None:
            self.updates += 1
