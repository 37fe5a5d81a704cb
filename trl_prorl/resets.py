"""
A callback may request a reset. At the next generation boundary, [`Resets`] moves the reference and treats the
optimizer. An unknown optimizer state raises an error before anything is changed.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback

from .optimizer import (
    Rewarmup,
    apply_reset,
    check_optimizer,
    plan_reset,
    reset_scaler,
    restart_schedule,
    snapshot_schedule,
)
from .parts import Event, Part, Row, make_event
from .run.columns import check_metric
from .run.log_files import RESET
from .treatments import treatment_of
from .upstream.modules import is_sharded
from .watch import Reason, Trigger, configured_triggers


class ReferenceResetCallback(TrainerCallback):
    """
    Requests a reset of the reference when one of its triggers fires.

    [`ProRLTrainer`] creates one from the `ref_reset_*` keys. Pass your own in `callbacks=[...]` to use other triggers.
    A trainer that was created with resets accepts more through `trainer.add_callback(callback)`.

    Args:
        triggers (`Iterable[Trigger]`): [`Periodic`], [`KLSpike`], [`Stall`], or your own subclasses of [`Trigger`].
        cooldown (`int`, *optional*, defaults to `0`): Optimizer steps from a reset to the first after which a trigger
            may fire again.

    Example:

    ```python
    >>> from trl_prorl import KLSpike, Periodic, ReferenceResetCallback

    >>> callback = ReferenceResetCallback([Periodic(every=200), KLSpike(threshold=0.1)], cooldown=50)
    >>> trainer.add_callback(callback)  # or ProRLTrainer(..., callbacks=[callback])
    ```
    """

    def __init__(self, triggers: Iterable[Trigger], cooldown: int = 0):
        self.triggers = list(triggers)
        self.cooldown = cooldown
        self.requests: list[Reason] = []  # pending; a trainer shares its own list
        self.last_reset: int | None = None  # optimizer steps
        self.as_made: dict[str, Any] | None = None  # state before its first trainer
        self.in_training = False  # an evaluation before or after training is not a validation

    def on_train_begin(self, args, state, control, **kwargs):
        self.in_training = True

    def on_train_end(self, args, state, control, **kwargs):
        self.in_training = False

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        if self.in_training:
            step = state.global_step
            self._request(step, [trigger.observe_evaluation(step, metrics or {}) for trigger in self.triggers])

    def observe_row(self, step: int, row: Row) -> None:
        self._request(step, [trigger.observe_step(step, row.get(trigger.watches)) for trigger in self.triggers])

    def _request(self, step: int, reasons: Iterable[Reason | None]) -> None:
        """Request a reset, unless one was applied within the cooldown."""
        if self.last_reset is None or step - self.last_reset >= self.cooldown:
            self.requests += [reason for reason in reasons if reason is not None]

    def applied(self, step: int) -> None:
        """Called after every reset, also of another callback."""
        self.last_reset = step
        for trigger in self.triggers:
            trigger.applied(step)

    def metrics(self) -> list[str]:
        return [trigger.metric for trigger in self.triggers if hasattr(trigger, "metric")]

    @property
    def watches_evaluations(self) -> bool:
        return any(type(trigger).observe_evaluation is not Trigger.observe_evaluation for trigger in self.triggers)

    def state_dict(self) -> dict[str, Any]:
        return {
            "last_reset": self.last_reset,
            "triggers": [[trigger.kind, trigger.state_dict()] for trigger in self.triggers],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore each trigger from the next saved trigger of its kind; without one it stays as it is."""
        self.last_reset = state["last_reset"]
        saved = list(state["triggers"])
        for trigger in self.triggers:
            same_kind = [pair for pair in saved if pair[0] == trigger.kind]
            if same_kind:
                saved.remove(same_kind[0])
                trigger.load_state_dict(same_kind[0][1])


def check_one_value(metric: str, eval_dataset) -> None:
    """Raise `ValueError` if a watched metric has one value for each of several evaluation sets."""
    sets = tuple(f"eval_{name}_" for name in eval_dataset) if isinstance(eval_dataset, dict) else ("",)
    if not metric.startswith(sets):
        raise ValueError(
            f"{metric!r} is watched, but eval_dataset contains several sets: {', '.join(eval_dataset)}. Pass one of "
            f"them, or watch a metric of one set, such as {sets[0]}reward."
        )


def configured_callback(args) -> ReferenceResetCallback:
    return ReferenceResetCallback(configured_triggers(args), args.ref_reset_cooldown)


# ---------------------------------------------------------------------------------------------------------------------
# The part: gather requests, synchronize processes, apply.


class Resets(Part):
    """
    `possible`: whether the trainer was created for resets. `handler` has the trainer's callbacks, which a user may
    change.
    """

    def __init__(self, args, accelerator, timer, possible: bool, handler):
        self.args = args
        self.accelerator = accelerator
        self.timer = timer
        self.possible = possible
        self.handler = handler
        self.optimizer = None
        self.schedule = None
        self.reference: Any = None  # a model of reference.py, if a reference moves
        self.rewarmup = Rewarmup(args.optimizer_reset_rewarmup_steps)
        self._schedule_start: dict | None = None
        self._scale = accelerator.scaler.get_scale() if accelerator.scaler is not None else None
        self.configured: ReferenceResetCallback | None = None  # made from the keys
        self._has_moved = False
        self.requests: list[Reason] = []  # of all callbacks, of alarms and of the user

    @property
    def callbacks(self) -> list[ReferenceResetCallback]:
        return [callback for callback in self.handler.callbacks if isinstance(callback, ReferenceResetCallback)]

    def _script_callbacks(self) -> list[ReferenceResetCallback]:
        """Return a script's callbacks."""
        return [callback for callback in self.callbacks if callback is not self.configured]

    def accept(self, callback: ReferenceResetCallback, eval_dataset) -> None:
        """Raises `ValueError`: the callback cannot request a reset, or a metric is unknown or has several values."""
        if not self.possible:
            raise ValueError(
                "A ReferenceResetCallback was added to a trainer that was created without resets: pass it in "
                "callbacks=[...] when you create the trainer."
            )
        for metric in callback.metrics():
            check_one_value(metric, eval_dataset)
        for trigger in callback.triggers:
            if type(trigger).observe_step is not Trigger.observe_step:
                check_metric(trigger.watches, f"{type(trigger).__name__}.watches")
        if callback.as_made is None:
            callback.as_made = deepcopy(callback.state_dict())
        else:  # an earlier trainer has used it
            callback.load_state_dict(deepcopy(callback.as_made))
        callback.requests = self.requests

    def optimizer_made(self, optimizer) -> None:
        if self.possible and self.args.optimizer_reset != "keep":
            check_optimizer(optimizer, self.args.optimizer_reset)  # a subclass may make another than the keys'
        self.optimizer = optimizer
        self.rewarmup.attach(optimizer)

    def schedule_made(self, schedule) -> None:
        self.schedule = schedule
        self._schedule_start = snapshot_schedule(schedule)

    # Requests and their application.

    def request(self, reason: Reason) -> None:
        """See [`ProRLTrainer.request_reset`]."""
        if not self.possible:
            raise ValueError(
                "A reset was requested, but the trainer was created without resets: set ref_reset_every, or pass a "
                "ReferenceResetCallback in callbacks=[...]."
            )
        self.requests.append(reason)

    def _take_requests(self) -> list[Reason]:
        """Take the main process's requests, on every process."""
        requests = list(self.requests)
        self.requests.clear()
        if self.accelerator.num_processes > 1:
            requests = broadcast_object_list([requests])[0]
        return requests

    def on_row(self, step: int, row: Row) -> None:
        for callback in self.callbacks:
            callback.observe_row(step, row)

    def on_generation(self, step: int) -> Event | None:
        """Merge all requests into one reset. Returns its event, or `None` without a request."""
        args = self.args
        if not self.possible:
            return None
        with self.timer.stage("reset") as sync:
            requests = self._take_requests()
        if not requests:
            return None
        treatment = treatment_of(args.optimizer_reset, args.optimizer_reset_alpha)
        plan = plan_reset(self.optimizer, args.optimizer_reset, args.optimizer_reset_alpha)
        with self.timer.stage("reset") as copy:
            if self.reference is not None:
                self.reference.move(args.ref_reset_mix)
                self._has_moved = self._has_moved or args.ref_reset_mix != 0.0
        with self.timer.stage("reset") as treating:
            apply_reset(plan)
            if treatment.resets_scaler and self.accelerator.scaler is not None:
                reset_scaler(self.accelerator.scaler, self._scale)
            if args.restarts_schedule:
                restart_schedule(self.schedule, self._schedule_start)
            self.rewarmup.begin()
        for callback in self.callbacks:
            callback.applied(step)
        first = requests[0]
        reason = "+".join(dict.fromkeys(request.reason for request in requests))
        event = {
            **make_event(RESET, first.step, step, reason, first.value, first.threshold),
            "requests": [request.to_dict() for request in requests],
            "ref_reset_mix": args.ref_reset_mix,
            "optimizer_reset": args.optimizer_reset,
            "world_size": self.accelerator.num_processes,
        }
        if treatment.uses_alpha:
            event["alpha"] = args.optimizer_reset_alpha
        event["seconds_copy"] = copy.seconds
        event["seconds_optimizer"] = treating.seconds
        event["seconds_sync"] = sync.seconds
        return event

    # Checkpoints.

    @property
    def _saves_reference(self) -> bool:
        is_synced = self.args.sync_ref_model and not is_sharded(self.accelerator)  # TRL saves none of its own
        return self.reference is not None and (self.possible or is_synced)

    def state_dict(self) -> dict[str, Any]:
        return {
            "moved": self._has_moved,
            "requests": [request.to_dict() for request in self.requests],
            "callbacks": [callback.state_dict() for callback in self._script_callbacks()],
            "configured": self.configured.state_dict() if self.configured is not None else None,
            "updates_since_reset": self.rewarmup.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        self._has_moved = state["moved"]
        if self._has_moved and self.reference is not None and not self.possible:
            raise ValueError(
                "resets have moved the reference of the checkpoint, but this trainer was created without resets and "
                "would take the starting model in its place: pass the ReferenceResetCallback of the run in "
                "callbacks=[...], or set ref_reset_every."
            )
        self.requests.clear()
        if self.possible:
            self.requests += [Reason(**request) for request in state["requests"]]
        for callback, callback_state in zip(self._script_callbacks(), state["callbacks"], strict=False):
            callback.load_state_dict(callback_state)
        # The configured callback may be new or gone since the checkpoint.
        if self.configured is not None and state["configured"] is not None:
            self.configured.load_state_dict(state["configured"])
        self.rewarmup.updates = state["updates_since_reset"]

    def save(self, folder) -> None:
        if self._saves_reference:
            self.reference.save(folder)

    def load(self, folder, changed: Mapping[str, Any]) -> None:
        # A run with a fixed reference writes none. A complete checkpoint lacks nothing that was written.
        if self._saves_reference:
            self.reference.load(folder)
