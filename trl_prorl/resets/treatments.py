"""
What a reset does to an optimizer's memory: one object for each treatment, of which everything else is made. A new one
is an entry of `TREATMENTS`, and a sentence in `ProRLConfig`'s `optimizer_reset`.

| treatment | first moment m | second moment v | step count | source |
|---|---|---|---|---|
| `keep` | m | v | t | |
| `hard` | 0 | 0 | 0 | a new optimizer: ProRL, arXiv 2505.24864; arXiv 2306.17833 |
| `soft` | αm | αv | t | `soft(1)` is `keep` |
| `asym` | 0 | v | t | |
| `step` | m | v | 0 | Adam-Rel, arXiv 2412.17113 |

Nothing is imported that takes long: the configuration and the reports read these names.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


ALPHA = "alpha"  # a moment's factor is `optimizer_reset_alpha`


@dataclass(frozen=True)
class Treatment:
    """
    One treatment.

    Attributes:
        name (`str`): The value of `optimizer_reset`.
        first, second (`float`, `"alpha"` or `Callable`, *optional*, defaults to `1.0`): The factor on that moment, or
            a function `(tensor, alpha)` that changes it in place. The function may draw no number that another
            process, or the same run resumed, would not draw.
        clears_step (`bool`, *optional*): Whether the step count becomes 0.
        restarts_schedule (`bool`, *optional*): Whether the learning-rate schedule starts again,
            if `optimizer_reset_schedule` does not say.
        resets_scaler (`bool`, *optional*): Whether an AMP scaler goes back to its initial scale.
    """

    name: str
    first: float | str | Callable[[Any, float], None] = 1.0
    second: float | str | Callable[[Any, float], None] = 1.0
    clears_step: bool = False
    restarts_schedule: bool = False
    resets_scaler: bool = False

    @property
    def is_factors(self) -> bool:
        """Whether it multiplies each moment by a number, which any optimizer and any engine can do."""
        return not (callable(self.first) or callable(self.second))

    @property
    def uses_alpha(self) -> bool:
        """Whether `optimizer_reset_alpha` has an effect."""
        return ALPHA in (self.first, self.second) or not self.is_factors

    @property
    def changes(self) -> frozenset[str]:
        """What it changes: some of `"first"`, `"second"` and `"step"`."""
        moments = {name for name in ("first", "second") if getattr(self, name) != 1.0}
        return frozenset(moments | ({"step"} if self.clears_step else set()))

    def of(self, moment: str, alpha: float) -> float | Callable[[Any], None]:
        """The factor on `"first"` or `"second"`, or the function of a tensor that changes it."""
        effect = getattr(self, moment)
        if callable(effect):
            return lambda tensor: effect(tensor, alpha)
        return alpha if effect == ALPHA else effect


TREATMENTS = {
    treatment.name: treatment
    for treatment in (
        Treatment("keep"),
        Treatment("hard", first=0.0, second=0.0, clears_step=True, restarts_schedule=True, resets_scaler=True),
        Treatment("soft", first=ALPHA, second=ALPHA),
        Treatment("asym", first=0.0),
        Treatment("step", clears_step=True),
    )
}
WITH_ALPHA = tuple(name for name, treatment in TREATMENTS.items() if treatment.uses_alpha)


def treatment_of(name: str, alpha: float = 1.0) -> Treatment:
    """A treatment by its name. Raises `ValueError`: there is none, or its α is outside (0, 1]."""
    if name not in TREATMENTS:
        raise ValueError(f"optimizer_reset={name!r} is not one of {', '.join(TREATMENTS)}.")
    if TREATMENTS[name].uses_alpha and not 0.0 < alpha <= 1.0:
        raise ValueError(f"optimizer_reset_alpha={alpha} is outside (0, 1].")
    return TREATMENTS[name]


def factors(name: str, alpha: float) -> tuple[float, float, bool]:
    """
    The factor of a treatment on m, that on v, and whether it clears the step count. Raises `ValueError`: it is not one
    factor for each moment.
    """
    treatment = treatment_of(name, alpha)
    if not treatment.is_factors:
        raise ValueError(
            f"optimizer_reset={name!r} is no factor on Adam's moments, and the schema holds nothing else."
        )
    return treatment.of("first", alpha), treatment.of("second", alpha), treatment.clears_step
