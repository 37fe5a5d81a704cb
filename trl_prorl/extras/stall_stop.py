"""An end: a run whose evaluations no longer improve stops; transformers keeps its best checkpoint."""

from collections.abc import Mapping
from typing import Any

from ..parts import Part, make_event
from ..run_files import RESET, STALL
from ..triggers import Stall


class StallStop(Part):
    """
    Ends a run after `stop_stall` evaluations without a gain, that is an improvement by more than
    `ref_reset_min_delta` on the best value of `ref_reset_metric`.

    With `ref_reset_stall` a reset comes first: evaluations count from the first reset after the last gain, whatever
    requested it, so the run ends although further resets follow. Evaluations without a gain:

    | `ref_reset_stall` | `stop_stall` | resets after | ends after |
    |---|---|---|---|
    | 0 | 3 | | 3 |
    | 2 | 2 | 2 | 2 + 2 |
    | 3 | 1 | 3 | 3 + 1 |
    | 2 | 5 | 2, 4, 6 | 2 + 5 |

    A `ref_reset_cooldown` that delays the reset delays the end as much. Values before the first step do not count, as
    in transformers: no checkpoint has them.

    Args:
        args ([`~trl_prorl.ProRLConfig`]): The trainer's arguments.
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
        """Called after each evaluation of the training. Returns the event that ends the run, or `None`."""
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
        if "ref_reset_stall" in changed:  # what was counted then does not count now
            self.counts = not self.waits_for_reset
            self.stall.without_improvement = 0


class End(Part):
    """Remembers which event has ended the run (`ended_by`), so that a resume does not train on unasked."""

    may_join = True
    remembers = ("ended_by",)

    def __init__(self):
        self.begin()

    def begin(self) -> None:
        self.ended_by: str | None = None

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        self.ended_by = None if changed else state["ended_by"]  # with another key it may go on
