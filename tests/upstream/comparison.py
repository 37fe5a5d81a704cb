"""What two runs of one suite say of each other: pytest's reports in, a verdict and a text out."""

import re
from collections import Counter
from dataclasses import dataclass
from textwrap import shorten
from xml.etree import ElementTree


@dataclass(frozen=True)
class Outcome:
    """How one test ended: `passed`, `failed`, `skipped` or `xfailed`, and why."""

    outcome: str
    reason: str = ""


ABSENT = Outcome("absent", "it did not report an outcome")


def read_outcomes(report: str) -> dict[str, Outcome]:
    """
    The outcome of every test of pytest's report in XML, by `class::name`, with the first line of an error; a test that
    fails after it passed, as in its teardown, failed.
    """
    outcomes: dict[str, Outcome] = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        test = f"{case.get('classname').rpartition('.')[2]}::{case.get('name')}"
        failures = [*case.findall("failure"), *case.findall("error")]
        for told in [*failures, *case.findall("skipped")][:1]:
            error = re.search(r"^E +(.+)", told.text or "", re.MULTILINE)
            reason = error[1] if failures and error else (told.get("message") or "").partition("\n")[0]
            outcome = "failed" if failures else "xfailed" if told.get("type") == "pytest.xfail" else "skipped"
            outcomes[test] = Outcome(outcome, reason.removeprefix("AssertionError: "))
        outcomes.setdefault(test, Outcome("passed"))
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
