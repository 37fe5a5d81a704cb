"""What a part brings back: checks that passed or failed, sheets of numbers, and what was left out and why."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Check:
    """
    Attributes:
        name (`str`): What was checked.
        passed (`bool`): Whether it holds.
        found (`str`): The number that decides, and what was allowed.
    """

    name: str
    passed: bool
    found: str


@dataclass(frozen=True)
class Sheet:
    """
    Attributes:
        title (`str`): With the setting.
        columns (`list[str]`): Headings.
        rows (`list[list]`): Text and numbers, as many as headings; `None` where nothing was measured.
        note (`str`): What it decides, or what to know before reading it.
    """

    title: str
    columns: list[str]
    rows: list[list]
    note: str = ""


@dataclass
class Result:
    """
    Attributes:
        checks (`list[Check]`), sheets (`list[Sheet]`):
            What was found.
        skipped (`dict[str, str]`):
            Names of what was left out, with the reason.
        facts (`dict`):
            Numbers without a sheet.
    """

    checks: list[Check] = field(default_factory=list)
    sheets: list[Sheet] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def check(self, name: str, passed: bool, found: str) -> None:
        self.checks.append(Check(name, bool(passed), found))

    @property
    def failed(self) -> list[str]:
        """Names of the checks that do not hold."""
        return [check.name for check in self.checks if not check.passed]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, written: dict[str, Any]) -> "Result":
        """The inverse of `to_dict`."""
        return cls(
            [Check(**check) for check in written["checks"]],
            [Sheet(**sheet) for sheet in written["sheets"]],
            written["skipped"],
            written["facts"],
        )
