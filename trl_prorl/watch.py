"""
Watches: rules on the numbers of a run.

A [`Trigger`] requests a reset; an [`Alarm`] writes an event and may stop the run. Watches ignore `None` (not
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


class Watch:
    """
    A rule on the metrics of steps or evaluations. Values that were not measured are `None`.

    Attributes:
        remembers (`tuple[str, ...]`): Names of the attributes in its state, which have JSON values.
        last_good (`int`): Optimizer steps at the last value without trouble.
    """

    remembers: tuple[str, ...] = ()
    last_good = 0

    def observe(self, step: int, metrics: Mapping[str, float | None]) -> Reason | None:
        """Add the values of a step or an evaluation. Returns a [`Reason`] if the rule fires."""
        raise NotImplementedError

    def resume_with(self, changed: Mapping[str, Any]) -> None:
        """Called after a resume, with the keys that were changed."""


@dataclass(eq=False)
class FloorWatch(Watch):
    """
    Fires when a metric has been below a floor `patience` times in a row, and again only after a value at or above it.

    Args:
        name (`str`): Name of the reason.
        metric (`str`): Name of the metric.
        floor (`float`), patience (`int`): The rule.
    """

    name: str
    metric: str
    floor: float
    patience: int

    remembers = ("streak", "last_good")

    def __post_init__(self):
        self.streak = 0  # values below the floor in a row

    def observe(self, step, metrics):
        value = metrics.get(self.metric)
        if value is None or math.isnan(value):
            return None
        if value >= self.floor:
            self.streak = 0
            self.last_good = step
            return None
        self.streak += 1
        if self.streak != self.patience:
            return None
        return Reason(self.name, value, self.floor, step)

    def resume_with(self, changed):
        if changed:  # the same streak may now stop the run
            self.streak = 0


@dataclass(eq=False)
class BestWatch(Watch):
    """
    Fires when a metric does not improve on its best value (reason `name`), or falls below it (reason `drop`).

    Args:
        name (`str`): Name of the reason.
        metric (`str`): Name of the metric.
        patience (`int`, *optional*, defaults to `0`): Values in a row without improvement. 0: never.
        drop (`float`, *optional*): A value that is worse than the best by more than this. `None`: never.
        sign (`float`, *optional*, defaults to `1.0`): -1 if smaller values are better.
        min_delta (`float`, *optional*, defaults to `0.0`): Differences up to this are no improvement.
        waits_for_reset (`bool`, *optional*, defaults to `False`): `patience` counts from the first reset after the
            last improvement.
    """

    name: str
    metric: str
    patience: int = 0
    drop: float | None = None
    sign: float = 1.0
    min_delta: float = 0.0
    waits_for_reset: bool = False

    remembers = ("best", "streak", "counts")

    def __post_init__(self):
        self.best: float | None = None
        self.restart()

    def restart(self) -> None:
        self.streak = 0  # values in a row without improvement
        self.counts = not self.waits_for_reset  # whether the streak counts for `patience`

    def observe(self, step, metrics):
        value = metrics.get(self.metric)
        if value is None or not math.isfinite(value):  # nothing could improve on an infinite best
            return None
        gain = math.inf if self.best is None else self.sign * (value - self.best)
        if gain > self.min_delta:
            self.best = value
            self.restart()
            return None
        self.streak += 1
        if self.drop is not None and -gain > self.drop:
            return Reason("drop", value, self.best - self.sign * self.drop, step)
        if self.patience and self.counts and self.streak >= self.patience:
            return Reason(self.name, value, self.best, step)
        return None

    def applied(self, step):
        is_later = self.waits_for_reset and self.counts  # only the first reset after an improvement counts
        if not is_later:
            self.streak = 0
            self.counts = True

    def resume_with(self, changed):
        if "ref_reset_stall" in changed:  # a reset comes first from now on, or no longer
            self.restart()


@dataclass(eq=False)
class GapWatch(Watch):
    """
    Fires when a metric falls by more than `drop` below its best mean, and another one does not fall.

    Args:
        metric (`str`): The metric that falls.
        steady (`str`): The metric whose mean is no lower than it was at the best mean of the first.
        drop (`float`): A fall by more than this. After firing, the best mean is searched again.
        window (`int`): Number of values in a mean; it does not fire with fewer.
    """

    metric: str
    steady: str
    drop: float
    window: int

    remembers = ("values", "best", "steady_at_best", "last_good")

    def __post_init__(self):
        self.values: list[list[float]] = []  # of both metrics
        self.best: float | None = None
        self.steady_at_best = 0.0

    def observe(self, step, metrics):
        values = [metrics.get(self.metric), metrics.get(self.steady)]
        if not all(value is not None and math.isfinite(value) for value in values):
            return None
        self.values = [*self.values, values][-self.window :]
        if len(self.values) < self.window:
            return None
        mean, steady_mean = (sum(column) / self.window for column in zip(*self.values, strict=True))
        if self.best is None or mean >= self.best:
            self.best = mean
            self.steady_at_best = steady_mean
            self.last_good = step
            return None
        fall = self.best - mean
        if fall <= self.drop or steady_mean < self.steady_at_best:
            return None
        self.best = mean
        self.steady_at_best = steady_mean
        return Reason("drop", fall, self.drop, step)


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


class KLSpike(Trigger):
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
    remembers = ("values",)

    def __init__(self, threshold: float, window: int = 1):
        self.threshold = threshold
        self.window = window
        self.values: list[float] = []

    def observe_step(self, step, kl_ref=None):
        if kl_ref is None or math.isnan(kl_ref):
            return None
        self.values = [*self.values, kl_ref][-self.window :]
        if len(self.values) < self.window:
            return None
        mean = sum(self.values) / self.window
        if mean <= self.threshold:
            return None
        return Reason("kl_spike", mean, self.threshold, step)

    def applied(self, step):
        self.values = []


class Stall(BestWatch, Trigger):
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
        super().__init__("stall", metric, patience, drop, SIGNS[mode], min_delta)

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
class Alarm(Part):
    """
    A watch that writes an event.

    Args:
        name (`str`): Kind of the event.
        watch ([`Watch`]): The rule.
        reason (`str`): The event's reason.
        action (`str`): `"stop"` ends the run, `"reset"` requests a reset; others only write the event.
        warning (`str`, *optional*): Beginning of a warning, such as `"Entropy collapse"`.
        request (`Callable`, *optional*): Requests a reset for a [`Reason`].
        key (`str`): Key to change if a run that it has stopped is to train on.
    """

    name: str
    watch: Watch
    reason: str
    action: str
    warning: str = ""
    request: Callable[[Reason], None] | None = None
    key: str = field(kw_only=True)

    def on_row(self, step: int, row: Row) -> Event | None:
        event = self.fire(step, row)
        return None if event is None else {**event, "last_good": self.watch.last_good}

    def fire(self, step: int, metrics: Mapping[str, float]) -> Event | None:
        fired = self.watch.observe(step, metrics)
        if fired is None:
            return None
        if self.warning:
            numbers = f"{fired.value:.4g}, threshold {fired.threshold:.4g}"
            logger.warning("%s at step %d: %s (%s).", self.warning, step, self.reason, numbers)
        if self.action == "reset":
            self.request(replace(fired, reason=self.name))
        event = make_event(self.name, step, step, self.reason, fired.value, fired.threshold)
        return {**event, "action": self.action}

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self.watch, name) for name in self.watch.remembers}

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        for name in self.watch.remembers:
            setattr(self.watch, name, state[name])
        self.watch.resume_with(changed)


class StallStop(Alarm):
    """
    Ends the run after evaluations without a gain; with `waits_for_reset` a reset comes first. A row of a step, which
    an [`Alarm`] also observes, has no metric of an evaluation.
    """

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> Event | None:
        return self.fire(step, metrics)

    def on_event(self, event: Event) -> None:
        if event["event"] == RESET and self.watch.waits_for_reset:
            self.watch.applied(event["step_applied"])


def configured_alarms(args, request: Callable[[Reason], None]) -> dict[str, Alarm]:
    """Make the alarms of the keys, by part name. `request` requests a reset."""
    alarms = {}
    if args.entropy_floor is not None:
        watch = FloorWatch(ENTROPY_COLLAPSE, "entropy", args.entropy_floor, args.entropy_patience)
        alarms["entropy_watch"] = Alarm(
            ENTROPY_COLLAPSE,
            watch,
            reason=f"entropy below entropy_floor for {args.entropy_patience} steps",
            action="stop" if args.entropy_stop else "log",
            warning="Entropy collapse",
            key="entropy_stop",
        )
    if args.guard_gap is not None:
        alarms["guard_gap"] = Alarm(
            GUARD_GAP,
            GapWatch("accuracy", "reward", args.guard_gap, GUARD_WINDOW),
            reason="accuracy fell, the reward did not",
            action=args.guard_gap_action,
            warning="Possible reward hacking",
            request=request,
            key="guard_gap_action",
        )
    if args.stop_stall:
        watch = BestWatch(
            STALL,
            args.ref_reset_metric,
            args.stop_stall,
            min_delta=args.ref_reset_min_delta,
            waits_for_reset=args.ref_reset_stall > 0,
        )
        alarms["stall_stop"] = StallStop(
            STALL,
            watch,
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
