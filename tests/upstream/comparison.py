"""What two runs of one suite say of each other: outcomes in, a verdict and a text out."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
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
    """
    Two runs of one suite, with TRL's classes and with ours. `lost` are the tests that TRL's pass and ours do not,
    `gained` the reverse; `not_run` both skipped, and `neither` passes the others, as a suite of another version may
    ask for what is not there.
    """

    theirs: dict[str, Outcome]
    ours: dict[str, Outcome]

    def __post_init__(self):
        self.both, self.lost, self.gained, self.neither, self.not_run = ([] for _ in range(5))
        for test in dict.fromkeys([*self.theirs, *self.ours]):
            pair = tuple(outcome.outcome for outcome in self._where(test))
            passed = {(True, True): self.both, (True, False): self.lost, (False, True): self.gained}
            neither = self.not_run if pair == ("skipped", "skipped") else self.neither
            passed.get((pair[0] == "passed", pair[1] == "passed"), neither).append(test)

    def _where(self, test: str) -> tuple[Outcome, Outcome]:
        return self.theirs.get(test, ABSENT), self.ours.get(test, ABSENT)

    @property
    def agrees(self) -> bool:
        """Whether ours pass all that TRL's pass, and TRL's pass something."""
        return not self.lost and bool(self.both)

    def text(self) -> str:
        rows = [
            ("passed with TRL's classes", len(self.both + self.lost)),
            ("passed with ours", len(self.both + self.gained)),
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
