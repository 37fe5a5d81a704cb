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


def read_outcomes(report: str) -> dict[str, Outcome]:
    """
    The outcome of every test of pytest's report in XML, by `class::name`, with the first line of an error; a test that
    fails after it passed, as in its teardown, failed.
    """
    outcomes: dict[str, Outcome] = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        test = f"{case.get('classname').rpartition('.')[2]}::{case.get('name')}"
        failures = [*case.findall("failure"), *case.findall("error")]
        skips = case.findall("skipped")
        if failures:
            error = re.search(r"^E +(.+)", failures[0].text or "", re.MULTILINE)
            reason = error[1] if error else failures[0].get("message").partition("\n")[0]
            outcomes[test] = Outcome("failed", reason.removeprefix("AssertionError: "))
        elif skips:
            outcome = "xfailed" if skips[0].get("type") == "pytest.xfail" else "skipped"
            outcomes[test] = Outcome(outcome, skips[0].get("message"))
        else:
            outcomes.setdefault(test, Outcome("passed"))
    return outcomes


ABSENT = Outcome("absent", "it did not report an outcome")
BOTH = "passed with both"
LOST = "passed with TRL's classes, not with ours"
GAINED = "passed with ours, not with TRL's"
NEITHER = "passed with neither"
NOT_RUN = "not run with either"  # a suite of another version asks for what is not there


class Comparison:
    """Two runs of one suite, with TRL's classes and with ours: `found` has the tests by how both ended."""

    def __init__(self, theirs: dict[str, Outcome], ours: dict[str, Outcome]):
        self.found = {title: {} for title in (BOTH, LOST, GAINED, NEITHER, NOT_RUN)}
        for test in theirs | ours:
            ends = theirs.get(test, ABSENT), ours.get(test, ABSENT)
            match [end.outcome for end in ends]:
                case "passed", "passed":
                    title = BOTH
                case "passed", _:
                    title = LOST
                case _, "passed":
                    title = GAINED
                case "skipped", "skipped":
                    title = NOT_RUN
                case _:
                    title = NEITHER
            self.found[title][test] = ends

    @property
    def agrees(self) -> bool:
        """Whether ours pass all that TRL's pass, and TRL's pass something."""
        return not self.found[LOST] and bool(self.found[BOTH])

    def text(self) -> str:
        lines = [f"{len(tests):>4}  {title}" for title, tests in self.found.items()]
        reasons = Counter(theirs.reason for theirs, _ in self.found[NOT_RUN].values())
        lines += [f"{count:>10}  {reason}" for reason, count in reasons.most_common()]
        for title in (LOST, GAINED, NEITHER):
            lines += ["", f"{title}:"] if self.found[title] else []
            for test, ends in self.found[title].items():
                lines.append(f"  {test}")
                for whose, end in zip(("TRL's", "ours "), ends, strict=True):
                    lines.append(f"    {whose}: {end.outcome}: {shorten(end.reason, 160, placeholder=' ...')}")
        return "\n".join(lines)
