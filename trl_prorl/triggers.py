"""
Reset triggers: small objects that watch numbers and return a reason or `None`. Pure and serialisable.

A trigger observes every optimizer step (`observe_step`), every evaluation (`observe_evaluation`) and every applied
reset (`applied`), also of other triggers. A value that was not measured is `None`. Triggers ignore `None` and NaN.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


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
    [`Reason`] to request a reset, or `None`.

    Values that were not measured are `None`; triggers ignore `None` and NaN. Pass triggers to the trainer in a
    [`ReferenceResetCallback`].

    Attributes:
        watches (`str`, defaults to `"kl_ref"`): Metric of `metrics.jsonl` that `observe_step` receives: a mean over
            the tokens of the step.
        reasons (`tuple[str, ...]`): Names of the reasons that it can return.

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

    @property
    def kind(self) -> str:
        """
        Identifies its memory: another trigger of the same kind can continue with it, even with another threshold.
        """
        return type(self).__name__

    def observe_step(self, step: int, kl_ref: float | None = None) -> Reason | None:
        """
        Called after each optimizer step. Return a [`Reason`] to request a reset.

        Args:
            step (`int`): Optimizer steps done, from 1.
            kl_ref (`float`, *optional*): The step's value of the metric in `watches`; by default the KL to the
                reference, in nats per token.
        """
        return None

    def observe_evaluation(self, step: int, metrics: Mapping[str, float | None]) -> Reason | None:
        """Called after each evaluation, with its metrics by name (`eval_reward`, `eval_pass@1`, …)."""
        return None

    def applied(self, step: int) -> None:
        """Called after every reset, also of other triggers."""

    def state_dict(self) -> dict[str, Any]:
        """Return the trigger's state as JSON values; it is saved in checkpoints."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""


def measured(value: float | None) -> bool:
    """Return whether a value is a number; ∞ is one, NaN is not."""
    return value is not None and not math.isnan(value)


class Periodic(Trigger):
    """
    Fires every `every` optimizer steps: the key `ref_reset_every`. ProRL v2 resets every 200 to 500 steps.

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
    Fires when the KL to the reference, averaged over the last `window` steps, exceeds `threshold`: the keys
    `ref_reset_kl` and `ref_reset_kl_window`.

    A reset empties the window, because the new reference has another KL.

    Args:
        threshold (`float`): Nats per token.
        window (`int`, *optional*, defaults to `1`): Steps. The trigger does not fire before the window is full.

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
        self.threshold = threshold
        self.values: deque[float] = deque(maxlen=window)

    def observe_step(self, step, kl_ref=None):
        if not measured(kl_ref):
            return None
        self.values.append(kl_ref)
        mean = sum(self.values) / len(self.values)
        if len(self.values) == self.values.maxlen and mean > self.threshold:
            return Reason("kl_spike", value=mean, threshold=self.threshold, step=step)
        return None

    def applied(self, step):
        self.values.clear()

    def state_dict(self):
        return {"values": list(self.values)}

    def load_state_dict(self, state):
        self.values = deque(state["values"], maxlen=self.values.maxlen)


class Stall(Trigger):
    """
    Fires when a validation metric stops improving (reason `stall`) or falls (reason `drop`): the keys
    `ref_reset_stall` and `ref_reset_drop`. ProRL resets when validation stalls.

    The best value is kept across resets. The count of evaluations without improvement starts again at a reset.

    Args:
        metric (`str`): Name of a metric of the evaluations, such as `"eval_reward"` or `"eval_pass@1"`.
        patience (`int`, *optional*, defaults to `0`): Evaluations without improvement after which it fires. 0: never.
        drop (`float`, *optional*): Fires when the metric is worse than the best by more than this, in the unit of the
            metric. `None`: never.
        mode (`str`, *optional*, defaults to `"max"`): `"max"` if larger values are better, `"min"` if smaller values
            are better.
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
        self.metric = metric
        self.patience = patience
        self.drop = drop
        self.min_delta = min_delta
        self.sign = {"max": 1.0, "min": -1.0}[mode]
        self.best: float | None = None
        self.without_improvement = 0

    @property
    def kind(self):
        return f"Stall of {self.metric}, {self.sign:+.0f}"  # the best of one metric says nothing about another

    def observe_evaluation(self, step, metrics):
        value = metrics.get(self.metric)
        if not measured(value) or math.isinf(value):  # nothing could improve on an infinite best
            return None
        if self.best is None or self.sign * (value - self.best) > self.min_delta:
            self.best = value
            self.without_improvement = 0
            return None
        self.without_improvement += 1
        if self.drop is not None and self.sign * (self.best - value) > self.drop:
            return Reason("drop", value=value, threshold=self.best - self.sign * self.drop, step=step)
        if self.patience and self.without_improvement >= self.patience:
            return Reason("stall", value=value, threshold=self.best, step=step)
        return None

    def applied(self, step):
        self.without_improvement = 0

    def state_dict(self):
        return {"best": self.best, "without_improvement": self.without_improvement}

    def load_state_dict(self, state):
        self.best = state["best"]
        self.without_improvement = state["without_improvement"]


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
            args.ref_reset_metric_mode,
            args.ref_reset_min_delta,
        )
        triggers.append(stall)
    return triggers


class TriggerSet:
    """
    Several triggers that cannot fire until `cooldown` optimizer steps have passed since the last reset. They observe
    all the time.
    """

    def __init__(self, triggers: Iterable[Trigger], cooldown: int = 0):
        self.triggers = list(triggers)
        self.cooldown = cooldown
        self.last_reset_step: int | None = None

    def observe_step(self, step: int, mean: Callable[[str], float | None]) -> list[Reason]:
        """Collect all reasons of a step; `mean` returns a mean over tokens by its name in `metrics.jsonl`."""
        reasons = [trigger.observe_step(step, mean(trigger.watches)) for trigger in self.triggers]
        return self._allowed(step, reasons)

    def observe_evaluation(self, step: int, metrics: Mapping[str, float | None]) -> list[Reason]:
        reasons = [trigger.observe_evaluation(step, metrics) for trigger in self.triggers]
        return self._allowed(step, reasons)

    def _allowed(self, step: int, reasons: list[Reason | None]) -> list[Reason]:
        if self.last_reset_step is not None and step - self.last_reset_step < self.cooldown:
            return []
        return [reason for reason in reasons if reason is not None]

    def applied(self, step: int) -> None:
        self.last_reset_step = step
        for trigger in self.triggers:
            trigger.applied(step)

    def state_dict(self) -> dict[str, Any]:
        return {
            "last": self.last_reset_step,
            "kinds": [trigger.kind for trigger in self.triggers],
            "triggers": [trigger.state_dict() for trigger in self.triggers],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore each trigger from the next saved trigger of its kind; without one it starts empty."""
        self.last_reset_step = state["last"]
        memories: dict[str, list] = {}
        for kind, memory in zip(state["kinds"], state["triggers"], strict=True):
            memories.setdefault(kind, []).append(memory)
        for trigger in self.triggers:
            of_kind = memories.get(trigger.kind)
            if of_kind:
                trigger.load_state_dict(of_kind.pop(0))
