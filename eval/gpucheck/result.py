"""The result of a part: checks, tables, and what was left out and why; a file of JSON, which a later call reads."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trl_prorl.files import replaced


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
class Table:
    """
    Attributes:
        title (`str`): With the setting.
        columns (`list[str]`): Headings.
        rows (`list[list]`): Text and numbers, as many as headings; `None` where nothing was measured.
        note (`str`): How to read it.
    """

    title: str
    columns: list[str]
    rows: list[list]
    note: str = ""


@dataclass
class Result:
    """
    Attributes:
        checks (`list[Check]`), tables (`list[Table]`): What was found.
        skipped (`dict[str, str]`): Names of what was left out, with the reason.
        facts (`dict`): Numbers behind the tables.
        made_with (`dict[str, str]`): Code, device and versions.
    """

    checks: list[Check] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    made_with: dict[str, str] = field(default_factory=dict)

    def check(self, name: str, passed: bool, found: str) -> None:
        self.checks.append(Check(name, bool(passed), found))

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if not check.passed]

    def write(self, folder: Path, name: str) -> None:
        """Write it, whole or not at all."""
        with replaced(folder / f"{name}.json") as aside:
            aside.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path, name: str) -> "Result | None":
        """A part's result, or `None`."""
        path = folder / f"{name}.json"
        if not path.is_file():
            return None
        written = json.loads(path.read_text())
        checks, tables = (
            [kind(**one) for one in written.pop(key)] for kind, key in ((Check, "checks"), (Table, "tables"))
        )
        return cls(checks, tables, **written)
