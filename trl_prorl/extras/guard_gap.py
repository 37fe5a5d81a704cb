"""Guard against reward hacking: fewer completions are correct, and the reward does not fall."""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from ..parts import Part, make_event
from ..run_files import GUARD_GAP
from ..triggers import Reason


logger = logging.getLogger(__name__)

WINDOW = 40  # optimizer steps of a moving average; docs/methods.md has the error rates of 20, 40 and 60


class GuardGap(Part):
    """
    Fires when the moving average of `gold` (accuracy) has fallen by more than `gap` from its highest value so far,
    while the moving average of `reward` is no lower than it was then. After it fires, the highest value is searched
    again. `action` `"reset"` also requests a reset of the reference, `"stop"` ends the run.

    Args:
        gap (`float`): The fall in accuracy that is too much.
        action (`str`): `"event"`, `"reset"` or `"stop"`.
        request (`Callable`): Requests a reset.
    """

    def __init__(self, gap: float, action: str, request: Callable[[Reason], None]):
        self.gap = gap
        self.action = action
        self.request = request
        self.window = WINDOW
        self.begin()

    def begin(self) -> None:
        self._values: deque[list[float]] = deque(maxlen=self.window)  # gold and reward
        self._best: list[float] | None = None  # their averages when accuracy was highest
        self._best_step = 0

    def observe(self, gold: float | None, reward: float | None, step: int = 0) -> float | None:
        """Return the fall in accuracy, if this step makes the guard fire."""
        if gold is None or reward is None:
            return None
        self._values.append([gold, reward])
        if len(self._values) < self.window:
            return None
        now = [sum(values) / self.window for values in zip(*self._values, strict=True)]  # gold and reward
        if self._best is None or now[0] >= self._best[0]:
            self._best = now
            self._best_step = step
            return None
        fall = self._best[0] - now[0]
        if fall <= self.gap or now[1] < self._best[1]:
            return None
        self._best = now
        return fall

    def row(self, step: int, row: Mapping[str, float]) -> dict[str, Any] | None:
        fall = self.observe(row.get("gold"), row.get("reward"), step)
        if fall is None:
            return None
        logger.warning(
            "Possible reward hacking at step %d: accuracy (gold) fell by %.3g while the reward did not fall.",
            step,
            fall,
        )
        if self.action == "reset":
            self.request(Reason("guard_gap", value=fall, threshold=self.gap, step=step))
        return {
            **make_event(GUARD_GAP, step, step, "accuracy (gold) fell, the reward did not", fall, self.gap),
            "action": self.action,
            "last_good": self._best_step,
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            "values": list(self._values),
            "best": self._best,
            "best_step": self._best_step,
        }

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        self._values = deque(state["values"], maxlen=self.window)
        self._best = state["best"]
        self._best_step = state["best_step"]
