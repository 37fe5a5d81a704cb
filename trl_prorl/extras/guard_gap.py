"""Guard against reward hacking: accuracy falls and the reward does not."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from ..parts import Part, make_event
from ..run_files import GUARD_GAP
from ..triggers import Reason


logger = logging.getLogger(__name__)

WINDOW = 40  # optimizer steps of a moving average; docs/long-runs.md has the error rates of 20, 40 and 60


class GuardGap(Part):
    """
    Fires when the moving average of `gold` (accuracy) has fallen by more than `guard_gap` from its best value, while
    the moving average of `reward` is no lower than it was then. After firing, the best value is searched again.
    `guard_gap_action` `"reset"` also requests a reset of the reference, `"stop"` ends the run.
    """

    remembers = ("values", "best", "best_step")

    def __init__(self, args, request: Callable[[Reason], None]):
        self.gap = args.guard_gap
        self.action = args.guard_gap_action
        self.request = request
        self.window = WINDOW
        self.begin()

    def begin(self) -> None:
        self.values: list[list[float]] = []  # gold and reward of the newest steps
        self.best: list[float] | None = None  # their averages at the best accuracy
        self.best_step = 0

    def row(self, step: int, row: Mapping[str, float]) -> dict[str, Any] | None:
        if row.get("gold") is None or row.get("reward") is None:
            return None
        self.values = [*self.values, [row["gold"], row["reward"]]][-self.window :]
        if len(self.values) < self.window:
            return None
        now = [sum(values) / self.window for values in zip(*self.values, strict=True)]
        if self.best is None or now[0] >= self.best[0]:
            self.best = now
            self.best_step = step
            return None
        fall = self.best[0] - now[0]
        if fall <= self.gap or now[1] < self.best[1]:
            return None
        self.best = now
        logger.warning(
            "Possible reward hacking at step %d: accuracy (gold) fell by %.3g while the reward did not fall.",
            step,
            fall,
        )
        if self.action == "reset":
            self.request(Reason("guard_gap", value=fall, threshold=self.gap, step=step))
        event = make_event(GUARD_GAP, step, step, "accuracy (gold) fell, the reward did not", fall, self.gap)
        return {**event, "action": self.action, "last_good": self.best_step}
