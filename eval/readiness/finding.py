"""A finding of a preflight: a line with a number and a change, and the verdict of all of them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


FINE = "fine"
LOOK = "look"
STOP = "stop"
CAN_LEARN = 0
CANNOT_LEARN = 1


@dataclass(frozen=True)
class Finding:
    """
    One line.

    Attributes:
        what (`str`): What was looked at.
        number (`str`): What was found, with its unit.
        change (`str`): What to change; empty if nothing.
        level (`str`): `"fine"`, `"look"` (the run can learn, and could do better) or `"stop"` (it cannot learn).
        values (`dict`): The numbers behind the line.
    """

    what: str
    number: str
    change: str = ""
    level: str = FINE
    values: dict[str, Any] = field(default_factory=dict)


def make_finding(what: str, number: str, wrong: bool, change: str, level: str = LOOK, /, **values: Any) -> Finding:
    """Return a finding that asks for a change, at a level, only if something is wrong."""
    if not wrong:
        return Finding(what, number, values=values)
    return Finding(what, number, change, level, values)


def exit_code(findings: Iterable[Finding]) -> int:
    """1 if one of them says that the run cannot learn, else 0."""
    return CANNOT_LEARN if any(finding.level == STOP for finding in findings) else CAN_LEARN
