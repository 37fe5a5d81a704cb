"""What two runs of one suite say of each other: outcomes in, a verdict and a text out."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from textwrap import shorten


@dataclass(frozen=True)
class Outcome:
    """How one test ended: `passed`, `failed`, `skipped`, `xfailed` or `xpassed`, and why."""

    outcome: str
    reason: str = ""


ABSENT = Outcome("absent", "it did not report an outcome")


def read_outcomes(lines: Iterable[str]) -> dict[str, Outcome]:
    """The outcome of every test, from lines of JSON; a test that fails twice, as in its teardown, failed once."""
    outcomes: dict[str, Outcome] = {}
    for row in map(json.loads, lines):
        if outcomes.get(row["test"], ABSENT).outcome != "failed":
            outcomes[row["test"]] = Outcome(row["outcome"], row["reason"])
    return outcomes


@dataclass
class Comparison:
    """Two runs of one suite: with TRL's classes and with ours."""

    theirs: dict[str, Outcome]
    ours: dict[str, Outcome]
    tests: list[str] = field(init=False)

    def __post_init__(self):
        self.tests = list(dict.fromkeys([*self.theirs, *self.ours]))

    def _where(self, test: str) -> tuple[Outcome, Outcome]:
        return self.theirs.get(test, ABSENT), self.ours.get(test, ABSENT)

    def _passes(self, theirs: bool, ours: bool) -> list[str]:
        return [
            test for test in self.tests if tuple(o.outcome == "passed" for o in self._where(test)) == (theirs, ours)
        ]

    @property
    def lost(self) -> list[str]:
        """What TRL's classes pass and ours do not."""
        return self._passes(True, False)

    @property
    def gained(self) -> list[str]:
        """What ours pass and TRL's do not."""
        return self._passes(False, True)

    @property
    def neither(self) -> list[str]:
        """What neither passes though both ran it, as a suite of another version may ask for what is not there."""
        return [test for test in self._passes(False, False) if not self._skipped(test)]

    @property
    def not_run(self) -> list[str]:
        """What both skipped."""
        return [test for test in self._passes(False, False) if self._skipped(test)]

    def _skipped(self, test: str) -> bool:
        return all(outcome.outcome == "skipped" for outcome in self._where(test))

    @property
    def agrees(self) -> bool:
        """Whether ours pass all that TRL's pass, and TRL's pass something."""
        return not self.lost and bool(self._passes(True, True))

    def text(self) -> str:
        both = len(self._passes(True, True))
        rows = [
            ("passed with TRL's classes", both + len(self.lost)),
            ("passed with ours", both + len(self.gained)),
            ("passed with TRL's, not with ours", len(self.lost)),
            ("passed with ours, not with TRL's", len(self.gained)),
            ("passed with neither", len(self.neither)),
            ("not run with either", len(self.not_run)),
        ]
        width = max(len(name) for name, _ in rows)
        lines = [f"{name:<{width}}  {count:>4}" for name, count in rows]
        reasons = Counter(self.theirs[test].reason for test in self.not_run)
        lines += [f"{'':<{width}}  {count:>4}  {reason}" for reason, count in reasons.most_common()]
        for title, tests in (
            ("Passed with TRL's classes, not with ours:", self.lost),
            ("Passed with ours, not with TRL's:", self.gained),
            ("Passed with neither:", self.neither),
        ):
            lines += ["", title] if tests else []
            for test in tests:
                theirs, ours = self._where(test)
                lines.append(f"  {test}")
                for whose, outcome in (("TRL's", theirs), ("ours ", ours)):
                    if outcome.outcome != "passed":
                        reason = shorten(outcome.reason, 160, placeholder=" ...")
                        lines.append(f"    {whose}: {outcome.outcome}: {reason}")
        return "\n".join(lines)
