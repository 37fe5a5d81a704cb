"""The parts in their order, first those that say whether the numbers are right; their sizes, and the result of one."""

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from trl_prorl.eval.stepcost.settings import parse
from trl_prorl.files import replaced


@dataclass(frozen=True)
class Check:
    """What was checked, whether it holds, and the number that decides with what was allowed."""

    name: str
    passed: bool
    found: str


@dataclass(frozen=True)
class Table:
    """
    A table with its setting in the title: headings, rows of text and numbers with `None` where nothing was measured,
    and how to read it.
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


MOST = 480  # seconds of a part


@dataclass(frozen=True)
class Part:
    """
    Attributes:
        name (`str`): Of its files, and on the command line.
        title (`str`): Of its section.
        run (`str` or `Callable`): `"MODULE:FUNCTION"` of this package, which takes seconds to import, or the function:
            from a size and a folder of its own to a `Result`.
        limit (`int`): Seconds on a card after which it is stopped.
    """

    name: str
    title: str
    run: str | Callable
    limit: int

    def __post_init__(self):
        if not 0 < self.limit <= MOST:
            raise ValueError(f"limit={self.limit} of the part {self.name}: at most {MOST} seconds.")

    def function(self) -> Callable:
        return resolve_name(f"{__package__}.{self.run}") if isinstance(self.run, str) else self.run


MACHINE = Part("machine", "The device", "runner:machine", 90)  # of every call: the results belong to it
PARTS = {
    part.name: part
    for part in (
        Part("tests", "Right: the tests that run on a GPU", "marked_tests:marked_tests", 480),
        Part("cost", "The cost of a step", "cost:cost", 400),
        Part("cost-large", "The cost of a step, the larger model", "cost:cost_large", 300),
    )
}


@dataclass(frozen=True)
class Size:
    """
    Attributes:
        name (`str`): `"card"` or `"cpu"`.
        device (`str`): `"cuda"` or `"cpu"`.
        models (`tuple`): Of the cost: shapes, each with its settings, completions as multiples of gold answers and μ.
        prompts, completions (`int`): Of a batch whose cost is measured, and of a prompt.
        longest (`int`): Tokens of a completion at most.
        rounds (`int`): After the one that warms up.
        ends (`float`): On `time.monotonic`: after it a part begins no further measurement.
    """

    name: str
    device: str
    models: tuple[tuple[str, tuple[tuple[float, int], ...]], ...]
    prompts: int
    completions: int
    longest: int
    rounds: int
    ends: float = math.inf

    @property
    def on_card(self) -> bool:
        return self.device == "cuda"

    @property
    def no_time(self) -> bool:
        return time.monotonic() > self.ends

    def arguments(self, **changes) -> argparse.Namespace:
        """The arguments of `eval.stepcost`, some of them changed."""
        args = parse(["--device", self.device])
        own = {"prompts": self.prompts, "num_generations": self.completions, "micro_batch": self.completions}
        vars(args).update(own | {"longest": self.longest, "rounds": self.rounds} | changes)
        return args


CARD = Size(
    name="card",
    device="cuda",
    models=(("qwen2.5-0.5b", ((1.0, 2), (4.0, 2), (1.0, 4))), ("qwen2.5-1.5b", ((1.0, 2), (4.0, 2)))),
    prompts=4,
    completions=8,
    longest=2048,
    rounds=3,
)
CPU = Size(
    name="cpu",
    device="cpu",
    models=(("tiny", ((1.0, 2),)),),
    prompts=2,
    completions=4,
    longest=12,
    rounds=1,
)
