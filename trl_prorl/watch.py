"""
Watches: rules on the numbers of a run.

`configured_triggers` request a reset; an [`Alarm`] writes an event and may stop the run. Watches ignore `None` (not
measured) and NaN. Their state is JSON, and in every checkpoint.
"""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from .parts import Event, Part, Row, make_event
from .run.log_files import ENTROPY_COLLAPSE, GUARD_GAP, RESET, STALL


logger = logging.getLogger(__name__)

SIGNS = {"max": 1.0, "min": -1.0}
GUARD_WINDOW = 40  # optimizer steps of a moving average; docs/long-runs.md has the error rates


@dataclass(frozen=True)
class Reason:
    """
    The reason for a reset, returned by a trigger and written to `events.jsonl`.

    Args:
        reason (`str`): Name of the event, such as `"kl_spike"`.
        value (`float`): Value that the trigger observed.
        threshold (`float`): Value with which the trigger compared it.
        step (`int`): Optimizer steps done when the trigger fired.

    Example:

    ```python
    >>> from trl_prorl import Reason

    >>> Reason("entropy_floor", value=0.19, threshold=0.2, step=84).to_dict()
    {'reason': 'entropy_floor', 'value': 0.19, 'threshold': 0.2, 'step': 84}
    ```
    """

    reason: str
    value: float
    threshold: float
    step: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Trigger:
    """
    Base class of reset triggers. A subclass overrides `observe_step`, `observe_evaluation` or both, and returns a
    [`Reason`] to request a reset.

    Values that were not measured are `None`; triggers ignore `None` and NaN. Pass triggers to the trainer in a
    [`ReferenceResetCallback`].

    Attributes:
        watches (`str`, defaults to `"kl_ref"`): Metric of `metrics.jsonl` that `observe_step` receives: a mean over
            the tokens of the step.
        reasons (`tuple[str, ...]`): Names of the reasons that it can return.
        remembers (`tuple[str, ...]`): Names of the attributes in its state, which have JSON values.

    Example:

    ```python
    >>> from trl_prorl import Reason, Trigger

    >>> class EntropyFloor(Trigger):
    ...     watches = "entropy"
    ...
    ...     def __init__(self, floor):
    ...         self.floor = floor
    ...
    ...     def observe_step(self, step, entropy=None):
    ...         if entropy is not None and entropy < self.floor:
    ...             return Reason("entropy_floor", value=entropy, threshold=self.floor, step=step)

    >>> EntropyFloor(0.2).observe_step(84, 0.19)
    Reason(reason='entropy_floor', value=0.19, threshold=0.2, step=84)
    ```
    """

    watches = "kl_ref"
    reasons: tuple[str, ...] = ()
    remembers: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Triggers of one kind can continue with each other's memory, even with another threshold."""
        return type(self).__name__

    def observe_step(self, step: int, kl_ref: float | None = None) -> Reason | None:
        """
        Called after each optimizer step. Return a [`Reason`] to request a reset.

        Args:
            step (`int`): Optimizer steps done, from 1.
            kl_ref (`float`, *optional*): The step's value of the metric in `watches`; by default in nats per token.
        """
        return None

    def observe_evaluation(self, step: int, metrics: Mapping[str, float | None]) -> Reason | None:
        """Called after each evaluation, with its metrics by name (`eval_reward`, `eval_pass@1`, …)."""
        return None

    def applied(self, step: int) -> None:
        """Called after every reset, also of other triggers."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON values."""
        return {name: getattr(self, name) for name in self.remembers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        for name in self.remembers:
            setattr(self, name, state[name])


@dataclass(eq=False)
class Watch(Trigger):
    """
    A rule on the mean of a metric's last `window` values, compared with `bound` or with the best mean so far.

    Args:
        name (`str`): Name of the reason; with `drop` it is `"drop"`.
        watches (`str`, *optional*, defaults to `"kl_ref"`): Name of the metric.
        bound (`float`, *optional*): Worse means than this one count.
        patience (`int`, *optional*, defaults to `0`): Fires after so many consecutive means that are worse than
            `bound`, or no better than the best one. 0: never.
        once (`bool`, *optional*, defaults to `False`): Fires by `patience` once, and again only after a better mean.
        drop (`float`, *optional*): Fires when a mean is worse than the best one by more than this.
        unless_falls (`str`, *optional*): `drop` fires only if this metric's mean is no lower than it was at the best
            one. After firing, the best one is searched again.
        window (`int`, *optional*, defaults to `1`): Number of values; the watch does not fire with fewer.
        sign (`float`, *optional*, defaults to `1.0`): -1 if smaller values are better.
        min_delta (`float`, *optional*, defaults to `0.0`): Differences up to this are no improvement.
        waits_for_reset (`bool`, *optional*, defaults to `False`): `patience` counts from the first reset after the
            last improvement.
    """

    name: str
    watches: str = "kl_ref"
    bound: float | None = None
    patience: int = 0
    once: bool = False
    drop: float | None = None
    unless_falls: str | None = None
    window: int = 1
    sign: float = 1.0
    min_delta: float = 0.0
    waits_for_reset: bool = False

    remembers = ("values", "best", "best_step", "other_at_best", "streak", "counts")

    def __post_init__(self):
        self.values: list[list[float]] = []  # of the metric, and of the one in `unless_falls`
        self.best: float | None = None
        self.best_step = 0
        self.other_at_best = 0.0
        self.restart()

    def restart(self) -> None:
        self.streak = 0  # means in a row that count for `patience`
        self.counts = not self.waits_for_reset

    def observe(self, step: int, metrics: Mapping[str, float | None]) -> Reason | None:
        """Add the values of a step or an evaluation."""
        value = metrics.get(self.watches)
        other = 0.0 if self.unless_falls is None else metrics.get(self.unless_falls)
        if value is None or other is None or math.isnan(value):
            return None
        if self.bound is None and math.isinf(value):  # nothing could improve on an infinite best
            return None
        self.values = [*self.values, [value, other]][-self.window :]
        if len(self.values) < self.window:
            return None
        mean, other = (sum(column) / self.window for column in zip(*self.values, strict=True))
        reference = self.best if self.bound is None else self.bound
        fall = -math.inf if reference is None else self.sign * (reference - mean)
        if self.bound is None and self.unless_falls is None:
            is_worse = fall >= -self.min_delta
        else:
            is_worse = fall > 0.0
        if not is_worse:
            self.best = mean
            self.best_step = step
            self.other_at_best = other
            self.restart()
            return None
        self.streak += 1
        if self.drop is not None and fall > self.drop and other >= self.other_at_best:
            if self.unless_falls is None:
                return Reason("drop", mean, reference - self.sign * self.drop, step)
            self.best = mean
            self.other_at_best = other
            return Reason("drop", fall, self.drop, step)
        is_due = self.streak == self.patience if self.once else self.streak >= self.patience
        if self.patience and self.counts and is_due:
            return Reason(self.name, mean, reference, step)
        return None

    def applied(self, step):
        if self.waits_for_reset and self.counts:  # only the first reset after an improvement counts
            return
        self.values = []
        self.streak = 0
        self.counts = True


class Periodic(Trigger):
    """
    Fires every `every` optimizer steps (key `ref_reset_every`).

    Args:
        every (`int`): Optimizer steps.

    Example:

    ```python
    >>> from trl_prorl import Periodic

    >>> Periodic(every=200).observe_step(400)
    Reason(reason='periodic', value=400, threshold=200, step=400)
    ```
    """

    reasons = ("periodic",)

    def __init__(self, every: int):
        self.every = every

    def observe_step(self, step, kl_ref=None):
        if step > 0 and step % self.every == 0:
            return Reason("periodic", value=step, threshold=self.every, step=step)
        return None


class KLSpike(Watch):
    """
    Fires when the KL to the reference, averaged over the last `window` steps, exceeds `threshold` (keys
    `ref_reset_kl`, `ref_reset_kl_window`).

    A reset empties the window, because the new reference has another KL.

    Args:
        threshold (`float`): Nats per token.
        window (`int`, *optional*, defaults to `1`): Steps; it does not fire with fewer.

    Example:

    ```python
    >>> from trl_prorl import KLSpike

    >>> trigger = KLSpike(threshold=0.1, window=2)
    >>> trigger.observe_step(1, kl_ref=0.05)
    >>> trigger.observe_step(2, kl_ref=0.25)
    Reason(reason='kl_spike', value=0.15, threshold=0.1, step=2)
    ```
    """

    reasons = ("kl_spike",)

    def __init__(self, threshold: float, window: int = 1):
        super().__init__("kl_spike", bound=threshold, patience=1, window=window, sign=-1.0)

    def observe_step(self, step, kl_ref=None):
        return self.observe(step, {"kl_ref": kl_ref})


class Stall(Watch):
    """
    Fires when a validation metric stops improving (reason `stall`, key `ref_reset_stall`) or falls (reason `drop`, key
    `ref_reset_drop`).

    The best value is kept across resets. The count of evaluations without improvement starts again at a reset.

    Args:
        metric (`str`): Evaluation metric, such as `"eval_reward"`.
        patience (`int`, *optional*, defaults to `0`): Evaluations without improvement after which it fires. 0: never.
        drop (`float`, *optional*): Fires when the metric is worse than the best by more than this, in its unit.
            `None`: never.
        mode (`str`, *optional*, defaults to `"max"`): `"max"` if larger values are better, or `"min"`.
        min_delta (`float`, *optional*, defaults to `0.0`): Differences up to this are no improvement.

    Example:

    ```python
    >>> from trl_prorl import Stall

    >>> trigger = Stall("eval_reward", patience=2)
    >>> for step, reward in [(100, 0.6), (200, 0.6), (300, 0.5)]:
    ...     reason = trigger.observe_evaluation(step, {"eval_reward": reward})
    >>> reason
    Reason(reason='stall', value=0.5, threshold=0.6, step=300)
    ```
    """

    reasons = ("stall", "drop")

    def __init__(
        self, metric: str, patience: int = 0, drop: float | None = None, mode: str = "max", min_delta: float = 0.0
    ):
        super().__init__("stall", metric, patience=patience, drop=drop, sign=SIGNS[mode], min_delta=min_delta)
        self.metric = metric

    @property
    def kind(self):
        return f"Stall of {self.metric}, {self.sign:+.0f}"  # the best of one metric says nothing about another

    def observe_evaluation(self, step, metrics):
        return self.observe(step, metrics)


CONFIGURED = (Periodic, KLSpike, Stall)


def configured_triggers(args) -> list[Trigger]:
    triggers: list[Trigger] = []
    if args.ref_reset_every:
        triggers.append(Periodic(args.ref_reset_every))
    if args.ref_reset_kl is not None:
        triggers.append(KLSpike(args.ref_reset_kl, args.ref_reset_kl_window))
    if args.ref_reset_stall or args.ref_reset_drop is not None:
        stall = Stall(
            args.ref_reset_metric,
            args.ref_reset_stall,
            args.ref_reset_drop,
            min_delta=args.ref_reset_min_delta,
        )
        triggers.append(stall)
    return triggers


# ---------------------------------------------------------------------------------------------------------------------
# Watches that act themselves.


@dataclass(eq=False)
class Alarm(Watch, Part):
    """
    A watch that writes an event of the kind `name`. `request` requests a reset for a [`Reason`].

    Args:
        reason (`str`): The event's reason.
        action (`str`): `"stop"` ends the run, `"reset"` requests a reset; others only write the event.
        warning (`str`, *optional*): Beginning of a warning, such as `"Entropy collapse"`.
        key (`str`): Key to change if a run that it has stopped is to train on.
    """

    reason: str = ""
    action: str = ""
    warning: str = ""
    request: Callable[[Reason], None] | None = None
    key: str = field(kw_only=True)

    def on_row(self, step: int, row: Row) -> Event | None:
        event = self.fire(step, row)
        return None if event is None else {**event, "last_good": self.best_step}

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> Event | None:
        return self.fire(step, metrics)

    def fire(self, step: int, metrics: Mapping[str, float]) -> Event | None:
        fired = self.observe(step, metrics)
        if fired is None:
            return None
        if self.warning:
            numbers = f"{fired.value:.4g}, threshold {fired.threshold:.4g}"
            logger.warning("%s at step %d: %s (%s).", self.warning, step, self.reason, numbers)
        if self.action == "reset":
            self.request(replace(fired, reason=self.name))
        event = make_event(self.name, step, step, self.reason, fired.value, fired.threshold)
        return {**event, "action": self.action}

    def on_event(self, event: Event) -> None:
        if event["event"] == RESET and self.waits_for_reset:
            self.applied(event["step_applied"])

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        # The same streak may now stop the run, or count from another evaluation on.
        if (self.once and changed) or "ref_reset_stall" in changed:
            self.restart()


def configured_alarms(args, request: Callable[[Reason], None]) -> dict[str, Alarm]:
    """Make the alarms of the keys, by part name. `request` requests a reset."""
    alarms = {}
    if args.entropy_floor is not None:
        alarms["entropy_watch"] = Alarm(
            ENTROPY_COLLAPSE,
            "entropy",
            bound=args.entropy_floor,
            patience=args.entropy_patience,
            once=True,
            reason=f"entropy below entropy_floor for {args.entropy_patience} steps",
            action="stop" if args.entropy_stop else "log",
            warning="Entropy collapse",
            key="entropy_stop",
        )
    if args.guard_gap is not None:
        alarms["guard_gap"] = Alarm(
            GUARD_GAP,
            "accuracy",
            drop=args.guard_gap,
            unless_falls="reward",
            window=GUARD_WINDOW,
            reason="accuracy fell, the reward did not",
            action=args.guard_gap_action,
            warning="Possible reward hacking",
            request=request,
            key="guard_gap_action",
        )
    if args.stop_stall:
        alarms["stall_stop"] = Alarm(
            STALL,
            args.ref_reset_metric,
            patience=args.stop_stall,
            min_delta=args.ref_reset_min_delta,
            waits_for_reset=args.ref_reset_stall > 0,
            reason=f"no gain in {args.stop_stall} evaluations of {args.ref_reset_metric}",
            action="stop",
            key="stop_stall",
        )
    return alarms


class StopReason(Part):
    """Remembers the event that ended the run (`ended_by`): a resume does not continue it."""

    remembers = ("ended_by",)

    def __init__(self):
        self.ended_by: str | None = None

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        self.ended_by = None if changed else state["ended_by"]  # with another key it may continue
