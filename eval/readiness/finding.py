"""A finding of a preflight: a measured number with its meaning and a change, and whether the run can learn."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


FINE = "fine"
LOOK = "look"
STOP = "stop"
CAN_LEARN = 0
CANNOT_LEARN = 1
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Finding:
    """
    The result of one check.

    Attributes:
        what (`str`): The check.
        number (`str`): The measured value, with its unit.
        change (`str`): Meaning and cure; empty if nothing.
        level (`str`): `"fine"`, `"look"` (the run can learn, but a change is suggested) or `"stop"` (it cannot learn).
        values (`dict`): The numbers behind the finding.
    """

    what: str
    number: str
    change: str = ""
    level: str = FINE
    values: dict[str, Any] = field(default_factory=dict)


def make_finding(what: str, number: str, wrong: bool, change: str, level: str = LOOK, /, **values: Any) -> Finding:
    """Return a finding that suggests a change, at a level, only if something is wrong."""
    if not wrong:
        return Finding(what, number, values=values)
    return Finding(what, number, change, level, values)


def exit_code(findings: Iterable[Finding]) -> int:
    """Return 1 if a finding means that the run cannot learn, else 0."""
    return CANNOT_LEARN if any(finding.level == STOP for finding in findings) else CAN_LEARN
