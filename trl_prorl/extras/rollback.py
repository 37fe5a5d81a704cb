"""
Roll-back: a run that collapses continues from its last good checkpoint, at a lower learning rate.

    1. a step        A part returns an event with `"action": "stop"`, or a number is NaN.
    2. plan          `Rollback.plan` names the checkpoint to continue from; without one, the run ends.
    3. events.jsonl  The event `rollback` is written, and synchronised to disk.
    4. resume        Newer checkpoints are renamed, log files trimmed.
    5. lower rate    `load` multiplies the rate once for each roll-back that the checkpoint lacks.

The event is authoritative: after a kill before 3 nothing has happened; after it `checkpoint_after_rollback` repeats 4.
"""

from array import array
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR
from torch.optim.swa_utils import SWALR
from transformers.optimization import AdafactorSchedule

from ..optimizer import full_name
from ..parts import Event
from ..run.checkpoint import known_rollbacks, last_rollback
from ..run.checkpoint_files import unusable_reason
from ..run.folder import steps_of
from ..run.identity import takes_new_rates
from ..run.log_files import REWARD_COLLAPSE, ROLLBACK
from ..watch import Alarm, Reason
from .collapse import COLLAPSE_SHARE, SMOOTHING_STEPS, end_by_best


def count_rollbacks(run_dir: Path, to: str | None = None) -> int:
    """Return the number of the last roll-back in a folder's `events.jsonl`, or of the last one `to` a checkpoint."""
    last = last_rollback(run_dir, to)
    return last["rollbacks"] if last is not None else 0


def check_schedule(rollback: int, schedule) -> None:
    """Raise `ValueError` for a schedule whose rates do not follow from `base_lrs`, which a roll-back lowers."""
    sets_its_own = isinstance(schedule, OneCycleLR | CyclicLR | SWALR | AdafactorSchedule)
    if sets_its_own or not hasattr(schedule, "base_lrs"):
        raise ValueError(
            f"rollback={rollback} cannot lower the learning rates of {full_name(type(schedule))} (of optimizers or "
            "create_scheduler). Use another schedule, such as LambdaLR or one of lr_scheduler_type, or remove "
            "rollback."
        )


class Rollback(Alarm):
    """
    Plans a roll-back after a collapse of the reward, or another event that stops the run. `find_run_dir` returns the
    run's folder, which a hyperparameter search changes.
    """

    remembers = ("values", "known")

    def __init__(self, args, find_run_dir: Callable[[], Path]):
        reason = "the reward fell below half of its best"
        super().__init__(REWARD_COLLAPSE, "reward", reason=reason, action="stop", key="rollback")
        self.max_rollbacks = args.rollback
        self.factor = args.rollback_rate
        self.find_run_dir = find_run_dir
        self.optimizer: Any = None
        self.schedule: Any = None

    def begin(self) -> None:
        super().begin()
        if getattr(self, "known", 0):  # the optimizer of an earlier training has its rate
            self._scale(self.factor**-self.known)
        self.known = 0  # roll-backs in the current rate
        self._rewards = array("d")  # those of `values`; 70 ms a step to convert these after 100,000 steps

    def observe(self, step: int, metrics: Mapping[str, float | None]) -> Reason | None:
        if metrics.get("reward") is None:
            return None
        self.values.append([step, metrics["reward"]])
        self._rewards.append(metrics["reward"])
        if len(self.values) < 2 * SMOOTHING_STEPS:
            return None
        rewards = pd.Series(np.array(self._rewards))
        share = end_by_best(rewards)
        if share is None or share >= COLLAPSE_SHARE:
            return None
        self.best_step, _ = self.values[rewards.rolling(SMOOTHING_STEPS).mean().idxmax()]
        return Reason(self.name, share, COLLAPSE_SHARE, step)

    def optimizer_made(self, optimizer) -> None:
        self.optimizer = optimizer

    def schedule_made(self, schedule) -> None:
        check_schedule(self.max_rollbacks, schedule)  # a subclass may make another than the keys'
        self.schedule = schedule

    def plan(self, event: Event) -> Event | None:
        """
        Return the event that names the newest complete checkpoint no newer than `last_good`; `None` without one, or
        after the last allowed roll-back.
        """
        steps = steps_of(self.find_run_dir())
        good = sorted((path for path in steps if steps[path] <= event["last_good"]), key=steps.get, reverse=True)
        checkpoint = next((path for path in good if unusable_reason(path) is None), None)
        if self.known >= self.max_rollbacks or checkpoint is None:
            return None
        return {
            "event": ROLLBACK,
            "step_requested": event["step_applied"],
            "step_applied": steps[checkpoint],
            "reason": event["event"],
            "checkpoint": checkpoint.name,
            "rollbacks": self.known + 1,
            "rate_factor": self.factor ** (self.known + 1),
        }

    def load(self, folder: Path, changed: Mapping[str, Any]) -> None:
        """
        Lower the rate. In another folder than its run's, a checkpoint has the roll-backs that it knows, and those to
        it; one from before `rollback` was set knows none.
        """
        known = known_rollbacks(folder)
        here = count_rollbacks(self.find_run_dir())
        self.known = max(known, here, count_rollbacks(folder.parent, folder.name))
        # After a change a rate is the configuration's, without any factor, if the schedule takes it.
        in_the_rate = 0 if changed and takes_new_rates(self.schedule) else known
        self._scale(self.factor ** (self.known - in_the_rate))

    def _scale(self, factor: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = group["lr"] * factor  # a tensor stays as it is elsewhere
            group["initial_lr"] = group["initial_lr"] * factor
        self.schedule.base_lrs = [rate * factor for rate in self.schedule.base_lrs]
        self.schedule._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        super().load_state_dict({**state, "known": self.known}, changed)
        self._rewards = array("d", [reward for _, reward in self.values])
