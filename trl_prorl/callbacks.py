"""Callbacks observe, and may request a reset. They never change weights; the trainer applies what they request."""

from collections.abc import Iterable

from transformers import TrainerCallback

from .triggers import Reason


class ReferenceResetCallback(TrainerCallback):
    """
    Watches triggers and requests a reset when one fires.

    [`ProRLTrainer`] makes one from the `ref_reset_*` keys. Pass your own in `callbacks=[...]` for other triggers: any
    object with `observe_step(step) -> Reason | None`.

    Args:
        triggers (`Iterable`):
            See [`~trl_prorl.triggers`].

    Example:

    ```python
    >>> trainer = ProRLTrainer(..., callbacks=[ReferenceResetCallback([Periodic(every=200)])])
    ```
    """

    def __init__(self, triggers: Iterable):
        self.triggers = list(triggers)
        self.requests: list[Reason] = []

    def on_step_end(self, args, state, control, **kwargs):
        for trigger in self.triggers:
            reason = trigger.observe_step(state.global_step)
            if reason is not None:
                self.requests.append(reason)

    def take_requests(self) -> list[Reason]:
        """The requests made since the last call, which are then the caller's."""
        taken, self.requests = self.requests, []
        return taken
