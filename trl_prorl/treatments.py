"""
Treatments of an optimizer's memory at a reset. Imports nothing slow.

| treatment | first moment m | second moment v | step count | source |
|---|---|---|---|---|
| `keep` | m | v | t | |
| `hard` | 0 | 0 | 0 | a new optimizer: ProRL, arXiv 2505.24864; arXiv 2306.17833 |
| `soft` | αm | αv | t | `soft(1)` is `keep` |
| `asym` | 0 | v | t | |
| `step` | m | v | 0 | Adam-Rel, arXiv 2412.17113 |
| `scale(F, G)` | F·m | G·v | t | your own factors |
| `scale(F, G, step)` | F·m | G·v | 0 | |
"""

import re
from dataclasses import dataclass


ALPHA = "alpha"  # the moment's factor is `optimizer_reset_alpha`


@dataclass(frozen=True)
class Treatment:
    """
    One treatment.

    Attributes:
        name (`str`): Value of `optimizer_reset`.
        first, second (`float` or `"alpha"`, *optional*, defaults to `1.0`): Factor on that moment.
        clears_step (`bool`, *optional*): Whether the step count becomes 0.
        restarts_schedule (`bool`, *optional*): Whether the schedule restarts, unless `optimizer_reset_schedule` is
            set.
        resets_scaler (`bool`, *optional*): Whether an AMP scaler returns to its initial scale.
    """

    name: str
    first: float | str = 1.0
    second: float | str = 1.0
    clears_step: bool = False
    restarts_schedule: bool = False
    resets_scaler: bool = False

    @property
    def uses_alpha(self) -> bool:
        return ALPHA in (self.first, self.second)

    @property
    def changes(self) -> frozenset[str]:
        changed = set()
        if self.first != 1.0:
            changed.add("first")
        if self.second != 1.0:
            changed.add("second")
        if self.clears_step:
            changed.add("step")
        return frozenset(changed)

    def effect_on(self, moment: str, alpha: float) -> float:
        factor = getattr(self, moment)
        return alpha if factor == ALPHA else factor


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
SCALE = re.compile(r"scale\((?P<first>[0-9.]+), *(?P<second>[0-9.]+)(?P<step>, *step)?\)")
SCALE_FORMS = "scale(F, G)", "scale(F, G, step)"  # with factors in [0, 1]


def _scale(name: str) -> Treatment | None:
    match = SCALE.fullmatch(name)
    try:
        first = float(match["first"])
        second = float(match["second"])
    except (TypeError, ValueError):  # no match, or a factor such as 0.1.2
        return None
    if first > 1.0 or second > 1.0:
        return None
    return Treatment(name, first, second, clears_step=match["step"] is not None)


def names_with_alpha() -> list[str]:
    return [name for name, treatment in TREATMENTS.items() if treatment.uses_alpha]


def treatment_of(name: str, alpha: float = 1.0) -> Treatment:
    """Raises `ValueError`: unknown name, or α outside (0, 1]."""
    treatment = TREATMENTS.get(name) or _scale(name)
    if treatment is None:
        raise ValueError(f"optimizer_reset={name!r} is not one of {', '.join((*TREATMENTS, *SCALE_FORMS))}.")
    if treatment.uses_alpha and not 0.0 < alpha <= 1.0:
        raise ValueError(f"optimizer_reset_alpha={alpha} is outside (0, 1].")
    return treatment
