"""Early stopping: a run ends when its evaluations no longer improve; transformers keeps its best checkpoint."""

from collections.abc import Mapping
from typing import Any

from ..parts import Part, make_event
from ..run_files import RESET, STALL
from ..triggers import Stall


class StallStop(Part):
    """
    Ends a run after `stop_stall` evaluations without a gain: an improvement by more than `ref_reset_min_delta` on the
    best value of `ref_reset_metric`.

    With `ref_reset_stall` a reset comes first. Evaluations then count from the first reset after the last gain, for
    any reason, so the run ends although further resets follow. Evaluations without a gain:

    | `ref_reset_stall` | `stop_stall` | resets after | ends after |
    |---|---|---|---|
    | 0 | 3 | | 3 |
    | 2 | 2 | 2 | 2 + 2 |
    | 3 | 1 | 3 | 3 + 1 |
    | 2 | 5 | 2, 4, 6 | 2 + 5 |

    If `ref_reset_cooldown` delays the reset, it delays the end as much. Values before the first step do not count, as
    in transformers: no checkpoint has them.
    """

    may_join = True

    def __init__(self, args):
        self.args = args
        self.waits_for_reset = args.ref_reset_stall > 0
        self.begin()

    def begin(self) -> None:
        args = self.args
        mode = args.ref_reset_metric_mode
        self.stall = Stall(args.ref_reset_metric, args.stop_stall, mode=mode, min_delta=args.ref_reset_min_delta)
        self.counts = not self.waits_for_reset

    def event(self, event: dict[str, Any]) -> None:
        if event["event"] == RESET and not self.counts:
            self.counts = True
            self.stall.applied(event["step_applied"])

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> dict[str, Any] | None:
        """Called after each evaluation during training. Returns the event that ends the run, or `None`."""
        best = self.stall.best
        reason = self.stall.observe_evaluation(step, metrics)
        if self.stall.best != best:
            self.counts = not self.waits_for_reset
        if reason is None or not self.counts:
            return None
        why = f"no gain in {self.stall.without_improvement} evaluations of {self.stall.metric}"
        return {**make_event(STALL, step, step, why, reason.value, reason.threshold), "action": "stop"}

    def state_dict(self) -> dict[str, Any]:
        return {**self.stall.state_dict(), "counts": self.counts}

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        self.stall.load_state_dict(state)
        self.counts = state["counts"]
        if "ref_reset_stall" in changed:  # earlier counts are not valid under another rule
            self.counts = not self.waits_for_reset
            self.stall.without_improvement = 0


class End(Part):
    """Remembers the event that has ended the run (`ended_by`), so a resume does not continue training by itself."""

    may_join = True
    remembers = ("ended_by",)

    def __init__(self):
        self.begin()

    def begin(self) -> None:
        self.ended_by: str | None = None

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        self.ended_by = None if changed else state["ended_by"]  # with another key it may continue
