"""What a reset does to an optimizer's memory: keep, hard, soft(α), asym, as pure functions on one parameter's state.

| mode | first moment m | second moment v (and amsgrad's maximum) | step count |
|---|---|---|---|
| `keep` | m | v | t |
| `hard` | 0 | 0 | 0 |
| `soft` | αm | αv | t |
| `asym` | 0 | v | t |

`hard` gives what a new optimizer would have (ProRL, arXiv 2505.24864; arXiv 2306.17833). `soft(1)` is `keep`. Because t
stays, the first updates after `soft(α)` grow by up to 1/√α: m shrinks by α, √v by √α only, and m is refilled faster.
An 8-bit state is scaled through its block maxima `absmax`, which is exact; the uint8 codes are never touched, for code 0
does not stand for zero.
"""

from collections.abc import Mapping
from typing import Any

import torch


MODES = ("keep", "hard", "soft", "asym")

# Names of the first and the second moments in the optimizers that are understood.
FIRST_MOMENTS = ("exp_avg",)
SECOND_MOMENTS = ("exp_avg_sq", "max_exp_avg_sq")
# bitsandbytes: `state1`/`state2` are fp32 below 4096 values, else uint8 codes scaled by `absmax1`/`absmax2`; the
# `qmap` tables are constants shared by all parameters.
BNB_FIRST, BNB_SECOND = ("state1", "absmax1"), ("state2", "absmax2")
BNB_CONSTANTS = ("qmap1", "qmap2", "new_max1", "new_max2", "max1", "max2")
STEP = "step"


def factors(mode: str, alpha: float) -> tuple[float, float, bool]:
    """
    The factor on m, the factor on v, and whether the step count is cleared.

    Args:
        mode (`str`):
            `"keep"`, `"hard"`, `"soft"` or `"asym"`.
        alpha (`float`):
            Factor of `"soft"`, in (0, 1].
    """
    if mode == "keep":
        return 1.0, 1.0, False
    if mode == "hard":
        return 0.0, 0.0, True
    if mode == "soft":
        if not 0.0 < alpha <= 1.0:
            raise ValueError(f"optimizer_reset_alpha={alpha} is outside (0, 1].")
        return alpha, alpha, False
    if mode == "asym":
        return 0.0, 1.0, False
    raise ValueError(f"optimizer_reset={mode!r} is not one of {', '.join(MODES)}.")


@torch.no_grad()
def transform_state(state: Mapping[str, Any], mode: str, alpha: float = 1.0) -> dict[str, Any]:
    """
    One parameter's optimizer state after a reset. The input is not modified.

    Args:
        state (`Mapping[str, Any]`):
            Entry of `optimizer.state` of one parameter: Adam's (torch) or AdamW's (bitsandbytes, 32- or 8-bit). Empty
            before the first update, and then returned empty.
        mode (`str`):
            `"keep"`, `"hard"`, `"soft"` or `"asym"`.
        alpha (`float`, *optional*, defaults to `1.0`):
            Factor of `"soft"`, in (0, 1].

    Returns:
        `dict[str, Any]`: the same keys, tensors of the same shapes and dtypes.

    Raises:
        `ValueError`: an entry whose meaning is not known.
    """
    on_first, on_second, clear_step = factors(mode, alpha)
    check_state(state)
    new = dict(state)
    if mode == "keep":
        return new
    for key, value in state.items():
        if key in (*FIRST_MOMENTS, *BNB_FIRST) and is_scale(state, key):
            new[key] = scaled(value, on_first)
        elif key in (*SECOND_MOMENTS, *BNB_SECOND) and is_scale(state, key):
            new[key] = scaled(value, on_second)
        elif key == STEP and clear_step:
            new[key] = torch.zeros_like(value) if isinstance(value, torch.Tensor) else type(value)(0)
    return new


def check_state(state: Mapping[str, Any]) -> None:
    """Raise `ValueError` if one parameter's state has an entry whose meaning is not known."""
    unknown = set(state) - {*FIRST_MOMENTS, *SECOND_MOMENTS, *BNB_FIRST, *BNB_SECOND, *BNB_CONSTANTS, STEP}
    if unknown:
        raise ValueError(
            f"optimizer state {sorted(unknown)} is not understood: a reset cannot say what becomes of it."
        )


def is_scale(state: Mapping[str, Any], key: str) -> bool:
    """Whether multiplying this entry scales the moment: true of everything but the uint8 codes of an 8-bit state."""
    return not (isinstance(state[key], torch.Tensor) and state[key].dtype == torch.uint8)


def scaled(value: torch.Tensor, factor: float) -> torch.Tensor:
    # 0 · inf would be NaN: clearing is a fill, not a product.
    return torch.zeros_like(value) if factor == 0.0 else value * factor


def check_optimizer_class(cls: type) -> None:
    """
    Refuse an optimizer whose state a reset would not understand, before any training.

    Raises:
        `ValueError`: naming the optimizer and those that are understood.
    """
    torch_adam = issubclass(cls, (torch.optim.Adam, torch.optim.AdamW))
    bnb_adam = cls.__module__.startswith("bitsandbytes.") and "Adam" in cls.__name__
    if not (torch_adam or bnb_adam):
        raise ValueError(
            f"optimizer_reset does not understand the state of {cls.__module__}.{cls.__name__}: use torch's Adam or "
            "AdamW (optim: adamw_torch, adamw_torch_fused) or bitsandbytes' (optim: adamw_8bit, paged_adamw_8bit), or "
            "set optimizer_reset: keep."
        )


def check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """`check_optimizer_class` of an instance, Accelerate's wrapper looked through."""
    check_optimizer_class(type(getattr(optimizer, "optimizer", optimizer)))


def reset_optimizer(optimizer: torch.optim.Optimizer, mode: str, alpha: float = 1.0) -> None:
    """
    Apply `transform_state` to every parameter of an optimizer, in place: the state's tensors keep their storage.

    Nothing is written unless every state is understood.

    Args:
        optimizer (`torch.optim.Optimizer`):
            The optimizer, or Accelerate's wrapper of it.
        mode (`str`):
            `"keep"`, `"hard"`, `"soft"` or `"asym"`.
        alpha (`float`, *optional*, defaults to `1.0`):
            Factor of `"soft"`, in (0, 1].

    Raises:
        `ValueError`: a state that is not understood.
    """
    if mode == "keep":
        return
    states = list(getattr(optimizer, "optimizer", optimizer).state.values())
    factors(mode, alpha)
    for state in states:
        check_state(state)
    for state in states:
        for key, value in transform_state(state, mode, alpha).items():
            if isinstance(value, torch.Tensor) and value is not state[key]:
                state[key].copy_(value)
            else:
                state[key] = value


def reset_scaler(scaler: "torch.amp.GradScaler", initial_scale: float) -> None:
    """Give an AMP gradient scaler its initial scale and an empty growth count (part of `hard`)."""
    scaler.load_state_dict({**scaler.state_dict(), "scale": initial_scale, "_growth_tracker": 0})
