"""
When to reset: small objects that watch numbers and answer with a reason or `None`. Pure and serialisable.

A trigger sees every optimizer step (`observe_step`), every evaluation (`observe_evaluation`) and every reset that was
applied (`applied`), whoever asked for it. A value that was not measured is `None`. A trigger ignores `None` and NaN.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Reason:
    """
    Says why a reset is requested.

    Args:
        reason (`str`): Name of the trigger that fired.
        value (`float`): The value that the trigger saw.
        threshold (`float`): The value with which the trigger compared it.
        step (`int`): Optimizer steps done when it fired.
    """

    reason: str
    value: float
    threshold: float
    step: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Trigger:
    """
    Base of all triggers: it sees everything and never fires.

    A trigger that keys of [`ProRLConfig`] switch on, whose effect is `RESET`, names them, says how it is made, and
    stands in [`CONFIGURED`].

    Attributes:
        watches (`str`): The mean over a step's tokens that `observe_step` gets, by its name in the record.
        keys (`tuple[str, ...]`): The keys that switch it on, where they are neither 0 nor `None`.
        reasons (`tuple[str, ...]`): What it can answer with.
    """

    watches = "kl_ref"
    keys: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    @classmethod
    def is_on(cls, args) -> bool:
        """Whether a key of a [`ProRLConfig`] asks for it."""
        return any(getattr(args, key) not in (None, 0) for key in cls.keys)

    @classmethod
    def of(cls, args) -> "Trigger":
        """Make the trigger that a [`ProRLConfig`] asks for."""
        raise NotImplementedError

    @property
    def kind(self) -> str:
        """
        The subject of its memory. Another trigger of the same kind may continue with that memory, whatever its
        threshold.
        """
        return type(self).__name__

    def observe_step(self, step: int, kl_ref: float | None = None) -> Reason | None:
        """
        Observe that `step` optimizer steps are done, from 1.

        Args:
            step (`int`): Optimizer steps.
            kl_ref (`float`, *optional*): The last step's mean of what the trigger watches: KL to the reference in nats
                per token, where it does not say otherwise.
        """
        return None

    def observe_evaluation(self, step: int, metrics: Mapping[str, float | None]) -> Reason | None:
        """Observe an evaluation after `step` optimizer steps, with its metrics by name (`eval_reward`, ...)."""
        return None

    def applied(self, step: int) -> None:
        """Observe that a reset was applied after `step` optimizer steps."""

    def state_dict(self) -> dict[str, Any]:
        """Return the trigger's memory, as JSON values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the memory of another trigger of the same kind."""


def measured(value: float | None) -> bool:
    """Whether a value is a number; ∞ is one, NaN is not."""
    return value is not None and not math.isnan(value)


class Periodic(Trigger):
    """
    Fires when the number of optimizer steps done is a multiple of `every`. ProRL v2 resets every 200 to 500 steps.

    Args:
        every (`int`): Optimizer steps.
    """

    keys = ("ref_reset_every",)
    reasons = ("periodic",)

    def __init__(self, every: int):
        self.every = every

    @classmethod
    def of(cls, args):
        return cls(args.ref_reset_every)

    def observe_step(self, step, kl_ref=None):
        if step > 0 and step % self.every == 0:
            return Reason("periodic", value=step, threshold=self.every, step=step)
        return None


class KLSpike(Trigger):
    """
    Fires when the mean of the last `window` measured values of the KL to the reference exceeds `threshold`.

    A reset empties the window, because the KL to the old reference says nothing about the new one.

    Args:
        threshold (`float`): Nats per token.
        window (`int`, *optional*): Steps; the trigger does not fire before there are as many values.
    """

    keys = ("ref_reset_kl",)
    reasons = ("kl_spike",)

    def __init__(self, threshold: float, window: int = 1):
        self.threshold = threshold
        self.values: deque[float] = deque(maxlen=window)

    @classmethod
    def of(cls, args):
        return cls(args.ref_reset_kl, args.ref_reset_kl_window)

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
    Watches one metric of the evaluations: fires after `patience` evaluations without improving on the best by more
    than `min_delta`, or when the metric is worse than the best by more than `drop`. ProRL resets when validation
    stalls.

    The best is kept across resets; the count of evaluations starts again.

    Args:
        metric (`str`): Name of the metric: of validation, never of the reported test.
        patience (`int`, *optional*): Evaluations. With 0 the trigger never fires for a stall.
        drop (`float`, *optional*): In the metric's own unit. With `None` the trigger never fires for a drop.
        mode (`str`, *optional*): `"max"` if larger is better, `"min"` if smaller is.
        min_delta (`float`, *optional*): The least difference that counts as an improvement.
    """

    keys = ("ref_reset_stall", "ref_reset_drop")
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

    @classmethod
    def of(cls, args):
        return cls(
            args.ref_reset_metric,
            args.ref_reset_stall,
            args.ref_reset_drop,
            args.ref_reset_metric_mode,
            args.ref_reset_min_delta,
        )

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


# Those that keys ask for. Whatever depends on which there are is read from here.
CONFIGURED = (Periodic, KLSpike, Stall)


def configured_triggers(args) -> list[Trigger]:
    """Make the triggers that the keys of a [`ProRLConfig`] ask for."""
    return [trigger.of(args) for trigger in CONFIGURED if trigger.is_on(args)]


class TriggerSet:
    """
    Holds several triggers, which may not fire until `cooldown` optimizer steps have passed since the last applied
    reset.

    They observe all the time.

    Args:
        triggers (`Iterable[Trigger]`): The triggers.
        cooldown (`int`, *optional*): Optimizer steps. Before the first reset there is no cooldown.
    """

    def __init__(self, triggers: Iterable[Trigger], cooldown: int = 0):
        self.triggers = list(triggers)
        self.cooldown = cooldown
        self.last_reset_step: int | None = None

    def observe_step(self, step: int, mean: Callable[[str], float | None]) -> list[Reason]:
        """Collect every reason of a step, whose means over tokens `mean` gives by their names in the record."""
        reasons = [trigger.observe_step(step, mean(trigger.watches)) for trigger in self.triggers]
        return self._allowed(step, reasons)

    def observe_evaluation(self, step: int, metrics: Mapping[str, float | None]) -> list[Reason]:
        """Collect every reason of an evaluation."""
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
        """Give every trigger the memory of the next trigger of its kind; if there was none, it remembers nothing."""
        self.last_reset_step = state["last"]
        memories: dict[str, list] = {}
        for kind, memory in zip(state["kinds"], state["triggers"], strict=True):
            memories.setdefault(kind, []).append(memory)
        for trigger in self.triggers:
            of_kind = memories.get(trigger.kind)
            if of_kind:
                trigger.load_state_dict(of_kind.pop(0))
