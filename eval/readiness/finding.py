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
# What is printed for the beginning of `what`, which is the key in JSON. The most important finding is printed first.
LABELS = {
    "gold answers verify": "reference answers that the verifier accepts",
    "other rows' answers that verify": "answers to other prompts that the verifier accepts",
    "reward of gold answers, of other rows'": "mean reward of reference answers, of answers to other prompts",
    "groups that pay a wrong answer like a right one": "groups that reward a wrong answer as fully as a correct one",
    "verifier beside the reward": "separate verifier",
    "learning rate": "learning rate",
    "prompts of ": "prompts of ",
    "completions cut off": "truncated completions",
    "gold answers that fit": "reference answers that fit",
    "longest prompt": "longest prompt",
    "completions without an answer to verify": "completions without an answer to verify",
    "groups without signal, expected": "groups that give no gradient",
    "prompts with a signal": "prompts that give a gradient",
    "completions with a signal": "completions that give a gradient",
    "base pass rate of ": "accuracy of the starting model on ",
    "base pass rate": "accuracy of the starting model",
    "right among answers paid in full": "correct completions among those with full reward",
    "KL to the base that right answers need": "KL to the starting model that correct answers need (kl_target)",
    "KL to the policy before the first": "KL between the policies before and after the first",
    "trained parameters": "trained parameters",
    "entropy": "entropy",
    "tokens clipped after it": "tokens clipped after the first update",
    "memory": "memory",
    "peak memory": "peak memory",
    "largest micro-batch": "largest micro-batch",
    "rewards in a step that generates": "share of a generating step spent in reward functions",
    "wall time": "expected wall time",
}
# Beginnings of `what` of the findings that only measure and never suggest a change.
MEASUREMENTS = (
    "right among answers paid in full",
    "KL to the base that right answers need",
    "seconds by stage",
    "tokens per second",
    "wall time",
)


@dataclass(frozen=True)
class Finding:
    """
    The result of one check.

    Attributes:
        what (`str`): The check's key in JSON.
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

    @property
    def label(self) -> str:
        """The check's printed name."""
        for start, label in LABELS.items():
            if self.what.startswith(start):
                return label + self.what.removeprefix(start)
        return self.what

    @property
    def is_check(self) -> bool:
        """Whether it can suggest a change."""
        return not self.what.startswith(MEASUREMENTS)

    @property
    def priority(self) -> tuple[bool, int]:
        """Sorts findings: those that stop a run first, then by the order of `LABELS`."""
        places = [place for place, start in enumerate(LABELS) if self.what.startswith(start)]
        return self.level != STOP, min(places, default=len(LABELS))


def make_finding(what: str, number: str, wrong: bool, change: str, level: str = LOOK, /, **values: Any) -> Finding:
    """Return a finding that suggests a change, at a level, only if something is wrong."""
    if not wrong:
        return Finding(what, number, values=values)
    return Finding(what, number, change, level, values)


def exit_code(findings: Iterable[Finding]) -> int:
    """Return 1 if a finding means that the run cannot learn, else 0."""
    return CANNOT_LEARN if any(finding.level == STOP for finding in findings) else CAN_LEARN
