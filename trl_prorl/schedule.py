"""Starting a learning-rate schedule again from its first step."""

import copy
from typing import Any


def snapshot_schedule(scheduler) -> dict[str, Any]:
    """
    What `restart_schedule` needs, taken when the schedule is new.

    Args:
        scheduler ([`~torch.optim.lr_scheduler.LRScheduler`]):
            A schedule that has not been stepped.
    """
    return {
        "state": copy.deepcopy(scheduler.state_dict()),
        "lrs": [group["lr"] for group in scheduler.optimizer.param_groups],
    }


def restart_schedule(scheduler, start: dict[str, Any]) -> None:
    """
    Put a schedule, and the learning rates it has set, back to where it began; warm-up and decay run again.

    Args:
        scheduler ([`~torch.optim.lr_scheduler.LRScheduler`]):
            The schedule, or Accelerate's wrapper of it.
        start (`dict[str, Any]`):
            From `snapshot_schedule`.
    """
    inner = getattr(scheduler, "scheduler", scheduler)
    inner.load_state_dict(copy.deepcopy(start["state"]))
    for group, lr in zip(inner.optimizer.param_groups, start["lrs"], strict=True):
        group["lr"] = lr
