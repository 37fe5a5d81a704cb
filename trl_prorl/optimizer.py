"""
Optimizer treatment at a reset: factors on the state of each parameter; and the learning rate after it.

| optimizer | first moment | second moment |
|---|---|---|
| torch Adam, AdamW | `exp_avg` | `exp_avg_sq`, amsgrad's `max_exp_avg_sq` |
| torch SGD with momentum | `momentum_buffer` | none |
| torch Adafactor | none | `row_var`, `col_var`, `variance` |
| transformers Adafactor | `exp_avg` (with β1) | `exp_avg_sq_row`, `exp_avg_sq_col`, `exp_avg_sq` |
| bitsandbytes Adam family, from 4,096 values on | `absmax1` of `state1` | `absmax2` of `state2` |
| the same, below | `state1`, in fp32 | `state2`, in fp32 |

An 8-bit state is scaled exactly through its block maxima `absmax`. The uint8 codes are never touched: code 0 is not
zero.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch

from .supported import MEMORY, OPTIMIZERS, find_optimizer
from .treatments import TREATMENTS, treatment_of


MOMENTUM = "momentum_buffer"
FIRST_MOMENTS = ("exp_avg", MOMENTUM, "state1", "absmax1")
SECOND_MOMENTS = (
    "exp_avg_sq",
    "max_exp_avg_sq",
    "exp_avg_sq_row",
    "exp_avg_sq_col",
    "row_var",
    "col_var",
    "variance",
    "state2",
    "absmax2",
)
# bitsandbytes' code tables and scratch space, and Adafactor's RMS of the weights, recomputed by every update.
NOT_MEMORY = ("qmap1", "qmap2", "new_max1", "new_max2", "max1", "max2", "RMS")
STEP = "step"
ResetPlan = list[tuple[dict[str, Any], dict[str, float]]]  # every parameter's state, with its factors


def find_factors(state: Mapping[str, Any], mode: str, alpha: float = 1.0) -> dict[str, float]:
    """
    Return a treatment's factors other than 1 on one parameter's state, by key. Raises `ValueError`: an unknown entry.
    """
    treatment = treatment_of(mode, alpha)
    check_state(state)
    factors: dict[str, float] = {}
    for key, value in state.items():
        if value is None:
            continue
        if isinstance(value, torch.Tensor) and value.dtype == torch.uint8:  # its scale is in `absmax`
            continue
        if key in FIRST_MOMENTS:
            factors[key] = treatment.effect_on("first", alpha)
        elif key in SECOND_MOMENTS:
            factors[key] = treatment.effect_on("second", alpha)
        elif key == STEP and treatment.clears_step:
            factors[key] = 0.0
    return {key: factor for key, factor in factors.items() if factor != 1.0}


@torch.no_grad()
def apply_factors(state: dict[str, Any], factors: Mapping[str, float]) -> None:
    """Multiply entries of a state in place: tensors keep their storage."""
    for key, factor in factors.items():
        value = state[key]
        if key == MOMENTUM and factor == 0.0:
            del state[key]  # as in a new SGD; its first update applies no dampening
        elif not isinstance(value, torch.Tensor):
            state[key] = type(value)(value * factor)
        elif factor == 0.0:
            value.zero_()  # a fill, not a product: 0 · inf would be NaN
        else:
            value.mul_(factor)


def check_state(state: Mapping[str, Any]) -> None:
    unknown = set(state) - {*FIRST_MOMENTS, *SECOND_MOMENTS, *NOT_MEMORY, STEP}
    if unknown:
        raise ValueError(f"optimizer state {sorted(unknown)} is unknown, so trl-prorl cannot reset it.")


def check_optimizer_class(cls: type, momentum: float, beta1: float | None, mode: str) -> None:
    """Raise `ValueError` for an optimizer with an unknown state, or without the memory that a treatment changes."""
    memory = memory_of(cls, momentum, beta1)
    treatment = treatment_of(mode)
    name = full_name(cls)
    forgets = find_optimizer(cls).endswith("Adafactor") and treatment.clears_step and treatment.second != 0.0
    if forgets or (treatment.changes and not treatment.changes & memory):
        what = " and ".join(MEMORY[part] for part in sorted(treatment.changes))
        why = f"but {name} has none, so nothing would be reset"
        if forgets:
            why = f"but {name} forgets its second moment when the step count is 0, as with hard"
        useful = [key for key, candidate in TREATMENTS.items() if candidate.changes & memory]
        raise ValueError(
            f"optimizer_reset={mode!r} resets {what}, {why}. Set optimizer_reset: {', '.join(useful)} or keep, or "
            "use Adam (optim: adamw_torch)."
        )


def memory_of(cls: type, momentum: float, beta1: float | None) -> set[str]:
    """Return the parts of [`MEMORY`] of an optimizer. Raises `ValueError`: none, or an unknown state."""
    name = find_optimizer(cls)
    if name is None:
        raise ValueError(
            f"optimizer_reset does not support {full_name(cls)}. Set optimizer_reset: keep, or use one of "
            f"{', '.join(OPTIMIZERS)} (optim: adamw_torch, adafactor, adamw_8bit, …)."
        )
    memory = set(OPTIMIZERS[name].memory)
    settings = {"momentum": momentum, "beta1": beta1}
    if not settings.get(OPTIMIZERS[name].first_needs, True):
        memory.remove("first")
    if not memory:
        raise ValueError(
            f"optimizer_reset has no effect with {full_name(cls)} without momentum: pass optimizers=(SGD(..., "
            "momentum=0.9), None) to the trainer, or set optimizer_reset: keep."
        )
    return memory


def full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__name__}"


def inner_of(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    return getattr(optimizer, "optimizer", optimizer)


def configured_rates(optimizer: torch.optim.Optimizer) -> list[float]:
    """Return the groups' learning rates, without a schedule; none of a group that chooses it (`relative_step`)."""
    groups = [group for group in optimizer.param_groups if group["params"] and not group.get("relative_step")]
    return [group.get("initial_lr", group["lr"]) for group in groups]


def check_optimizer(optimizer: torch.optim.Optimizer, mode: str) -> None:
    inner = inner_of(optimizer)
    momentum = max(group.get("momentum", 0.0) for group in inner.param_groups)
    betas = [group["beta1"] for group in inner.param_groups if group.get("beta1") is not None]
    beta1 = betas[0] if betas else None
    check_optimizer_class(type(inner), momentum, beta1, mode)


def plan_reset(optimizer: torch.optim.Optimizer, mode: str, alpha: float) -> ResetPlan:
    """List every parameter's state with its factors. Raises `ValueError`: an unknown state."""
    if mode == "keep":
        return []
    inner = inner_of(optimizer)
    return [(state, find_factors(state, mode, alpha)) for state in inner.state.values()]


def apply_reset(plan: ResetPlan) -> None:
    for state, factors in plan:
        apply_factors(state, factors)


def reset_optimizer(optimizer: torch.optim.Optimizer, mode: str, alpha: float = 1.0) -> None:
    """Treat every parameter's state, or none."""
    apply_reset(plan_reset(optimizer, mode, alpha))


def reset_scaler(scaler: "torch.amp.GradScaler", initial_scale: float) -> None:
    scaler.load_state_dict({**scaler.state_dict(), "scale": initial_scale, "_growth_tracker": 0})


# ---------------------------------------------------------------------------------------------------------------------
# The learning rate after a reset.


def snapshot_schedule(scheduler) -> dict[str, Any]:
    """Return the state and the learning rates of a schedule (or Accelerate's wrapper of it)."""
    inner = getattr(scheduler, "scheduler", scheduler)
    rates = [float(group["lr"]) for group in inner.optimizer.param_groups]  # of a tensor, which changes
    return {"state": copy.deepcopy(inner.state_dict()), "lrs": rates}


def restart_schedule(scheduler, start: dict[str, Any]) -> None:
    """Reset a schedule (or Accelerate's wrapper of it) and its learning rates to [`snapshot_schedule`]."""
    inner = getattr(scheduler, "scheduler", scheduler)
    base_rates = getattr(inner, "base_lrs", None)  # a resume may have changed them
    inner.load_state_dict(copy.deepcopy(start["state"]))
    for place, group in enumerate(inner.optimizer.param_groups):
        rate = start["lrs"][place]
        if base_rates is not None:
            start_base_rate = inner.base_lrs[place]
            if start_base_rate:
                rate *= base_rates[place] / start_base_rate
        group["lr"] = rate
    if base_rates is not None:
        inner.base_lrs = base_rates


def rewarmup_factor(updates: int | None, steps: int) -> float:
    """
    Return the factor on the next learning rate after a reset: 1/steps, 2/steps, …, 1. `updates` since the reset:
    `None` without one.
    """
    if updates is None or steps <= 1:
        return 1.0
    return min(1.0, (updates + 1) / steps)


class Rewarmup:
    """Scales the learning rates during each update by [`rewarmup_factor`]."""

    def __init__(self, steps: int):
        self.steps = steps
        self.updates: int | None = None
        self._rates: list[float] = []
        self._optimizer: torch.optim.Optimizer | None = None

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Scale the rates of an optimizer; a script may put another in its place."""
        inner = inner_of(optimizer)
        if inner is not self._optimizer:
            self._optimizer = inner
            inner.register_step_pre_hook(self._before)
            inner.register_step_post_hook(self._after)

    @property
    def factor(self) -> float:
        """Factor on the learning rate of the next update."""
        return rewarmup_factor(self.updates, self.steps)

    def begin(self) -> None:
        self.updates = 0

    def _before(self, optimizer, args, kwargs) -> None:
        factor = self.factor
        self._rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * factor

    def _after(self, optimizer, args, kwargs) -> None:
        for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate
        params = [param for group in optimizer.param_groups for param in group["params"]]
        is_skipped = all(param.grad is None for param in params)
        if self.updates is not None and not is_skipped:
            self.updates += 1
