"""Callbacks observe, and may request a reset. They never change weights; the trainer applies what they request."""

from collections.abc import Iterable, Mapping
from typing import Any

from transformers import TrainerCallback

from .triggers import Reason, Trigger, TriggerSet, configured_triggers


class ReferenceResetCallback(TrainerCallback):
    """
    Requests a reset of the reference when one of its triggers fires.

    [`ProRLTrainer`] creates one from the `ref_reset_*` keys. Pass your own in `callbacks=[...]` to use other triggers,
    or call `trainer.add_callback(callback)`.

    Args:
        triggers (`Iterable[Trigger]`): [`Periodic`], [`KLSpike`], [`Stall`], or your own subclasses of [`Trigger`].
        cooldown (`int`, *optional*, defaults to `0`): Optimizer steps after a reset during which no trigger fires.

    Example:

    ```python
    >>> from trl_prorl import KLSpike, Periodic, ReferenceResetCallback

    >>> callback = ReferenceResetCallback([Periodic(every=200), KLSpike(threshold=0.1)], cooldown=50)
    >>> trainer.add_callback(callback)  # or ProRLTrainer(..., callbacks=[callback])
    ```
    """

    def __init__(self, triggers: Iterable[Trigger], cooldown: int = 0):
        self.triggers = TriggerSet(triggers, cooldown)
        self.requests: list[Reason] = []
        self.in_training = False  # an evaluation before or after the training is no validation

    def on_train_begin(self, args, state, control, **kwargs):
        self.in_training = True

    def on_train_end(self, args, state, control, **kwargs):
        self.in_training = False

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        if self.in_training:
            self.requests += self.triggers.observe_evaluation(state.global_step, metrics or {})

    def observe_row(self, step: int, row: Mapping[str, float]) -> None:
        """Observe the row of a step: it has the means over tokens that triggers watch."""
        self.requests += self.triggers.observe_step(step, row.get)

    def take_requests(self) -> list[Reason]:
        """Return the requests made since the last call, and forget them."""
        taken = self.requests
        self.requests = []
        return taken

    def metrics(self) -> list[str]:
        """Name the evaluation metrics that its triggers watch."""
        return [trigger.metric for trigger in self.triggers.triggers if hasattr(trigger, "metric")]

    def state_dict(self) -> dict[str, Any]:
        """Return the waiting requests and the memory of the triggers, as JSON values."""
        return {"requests": [request.to_dict() for request in self.requests], "triggers": self.triggers.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where the callback of another process stopped."""
        self.requests = [Reason(**request) for request in state["requests"]]
        self.triggers.load_state_dict(state["triggers"])


def configured_callback(args) -> ReferenceResetCallback:
    """Make the callback that the keys of a [`ProRLConfig`] ask for."""
    return ReferenceResetCallback(configured_triggers(args), args.ref_reset_cooldown)
