"""
Roll-back: a run that collapses goes on from its last good checkpoint, at a lower learning rate.

The event in the record is what counts. A checkpoint knows how many roll-backs had been made when it was written; the
rate is lowered once more for each that the record has and the checkpoint has not. So a run that is killed at any
moment of a roll-back ends as one that was not.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from ..errors import RunError
from ..guards.collapse import COLLAPSE_SHARE, SMOOTHING_STEPS, end_by_best
from ..parts import Part, fired
from ..record.keys import ROLLBACK
from ..record.meter import EVENTS_FILE
from ..record.run_files import read_jsonl
from .files import CHECKPOINT, steps_of, sync, why_unusable
from .state import read_state


class RollbackRequest(RunError):
    """A run has to go back; the event that asks for it."""

    def __init__(self, event: Mapping[str, Any]):
        super().__init__(f"step {event['step_applied']}: {event['event']}")
        self.event = event


def last_rollback(run_dir: Path) -> dict[str, Any] | None:
    """The last roll-back on record; earlier ones may have been behind its checkpoint."""
    events = reversed(read_jsonl(run_dir / EVENTS_FILE))
    return next((event for event in events if event["event"] == ROLLBACK), None)


def rollbacks_made(run_dir: Path) -> int:
    """How many roll-backs led to where the record is."""
    last = last_rollback(run_dir)
    return last["rollbacks"] if last is not None else 0


class Rollback(Part):
    """
    Watches the reward by the rule of the report: a collapse is an end below half of the best. A run goes back at most
    `most` times; each multiplies the learning rate by `factor`.
    """

    def __init__(self, most: int, factor: float, run_dir: Path, output_dir: Path):
        self.most, self.factor, self.run_dir, self.output_dir = most, factor, run_dir, output_dir
        self.optimizer: Any = None
        self.schedule: Any = None
        self.begin()

    def begin(self) -> None:
        self._rewards: list[float] = []
        self._steps: list[int] = []
        self._known = 0  # roll-backs by which the rate was lowered

    def optimizer_made(self, optimizer) -> None:
        self.optimizer = optimizer

    def schedule_made(self, schedule) -> None:
        self.schedule = schedule

    def row(self, step: int, row: Mapping[str, float]) -> dict[str, Any] | None:
        if row.get("reward") is None:
            return None
        self._rewards.append(row["reward"])
        self._steps.append(step)
        rewards = pd.Series(self._rewards)
        share = end_by_best(rewards) if len(rewards) >= 2 * SMOOTHING_STEPS else None
        if share is None or share >= COLLAPSE_SHARE:
            return None
        event = fired("collapse", step, step, "the reward is below half of its best", share, COLLAPSE_SHARE)
        good = self._steps[int(rewards.rolling(SMOOTHING_STEPS).mean().idxmax())]
        return event | {"action": "stop", "last_good": good}

    def go_back(self, event: Mapping[str, Any]) -> tuple[Path, dict[str, Any]] | None:
        """
        The checkpoint to go on from, the newest that is complete and no newer than the event's `last_good`, and the
        event of the roll-back. `None`: there is none, or all roll-backs are made.
        """
        made, good = rollbacks_made(self.run_dir), event["last_good"]
        steps = steps_of(self.output_dir)
        newest_first = sorted((path for path in steps if steps[path] <= good), key=steps.get, reverse=True)
        checkpoint = next((path for path in newest_first if why_unusable(path) is None), None)
        if made >= self.most or checkpoint is None:
            return None
        when = {"event": ROLLBACK, "step_requested": event["step_applied"], "step_applied": steps[checkpoint]}
        why = {"reason": event["event"], "checkpoint": checkpoint.name}
        return checkpoint, when | why | {"rollbacks": made + 1, "rate_factor": self.factor ** (made + 1)}

    def noted(self) -> None:
        """The event is written: it has to outlive a power loss."""
        sync(self.run_dir / EVENTS_FILE)

    def state_dict(self) -> dict[str, Any]:
        return {"rewards": self._rewards, "steps": self._steps, "known": self._known}

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        self._rewards, self._steps, made = state["rewards"], state["steps"], rollbacks_made(self.run_dir)
        factor, self._known = self.factor ** (made - state["known"]), made
        for group in self.optimizer.param_groups:
            group["lr"] *= factor
            group["initial_lr"] *= factor
        self.schedule.base_lrs = [rate * factor for rate in self.schedule.base_lrs]
        self.schedule._last_lr = [group["lr"] for group in self.optimizer.param_groups]


def after_rollback(checkpoint: Path, run_dir: Path) -> Path:
    """
    The checkpoint from which a run goes on that was killed in a roll-back, before it had put the newer checkpoints
    aside: not `checkpoint`, the newest, but the one that the record names.
    """
    last = last_rollback(run_dir)
    if last is None or int(CHECKPOINT.fullmatch(checkpoint.name)[1]) <= last["step_applied"]:
        return checkpoint
    known = read_state(checkpoint)["parts"].get("rollback", {}).get("known", 0)
    return checkpoint.with_name(last["checkpoint"]) if known < last["rollbacks"] else checkpoint
