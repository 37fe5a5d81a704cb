"""A choice between two ways to compute the same thing, and the reason for the slower one."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Choice:
    """
    Says whether an acceleration is used.

    Attributes:
        on (`bool`): Whether it is used.
        reason (`str`): Why it is not; empty if it is, or if nobody asked for it.
    """

    on: bool
    reason: str = ""

    @classmethod
    def unless(cls, reason: str | None) -> "Choice":
        """Choose the acceleration unless there is a reason against it."""
        return cls(reason is None, reason or "")

    @classmethod
    def parse(cls, text: str) -> "Choice":
        """Read what `str` wrote."""
        return cls(text == "on", text.removeprefix("off").removeprefix(": ") if text != "on" else "")

    def __str__(self) -> str:
        """Write it as `env.json` and checkpoints hold it: `on`, `off`, or `off: REASON`."""
        if self.on:
            return "on"
        return f"off: {self.reason}" if self.reason else "off"
