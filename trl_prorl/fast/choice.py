"""Whether an acceleration is on, and why."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Choice:
    """
    Whether an acceleration is on. As text, which `env.json` has: `on`, `on; REMARK`, `off` or `off: REASON`.

    Attributes:
        on (`bool`): Whether it is.
        reason (`str`, *optional*): Why it is off, or a remark if it is on.
    """

    on: bool
    reason: str = ""

    @classmethod
    def unless(cls, reason: str | None) -> "Choice":
        """Return on, or off for a reason."""
        return cls(reason is None, reason or "")

    @classmethod
    def parse(cls, text: str) -> "Choice":
        """Read what `str` wrote."""
        on = text.startswith("on")
        word = "on; " if on else "off: "
        reason = text.removeprefix(word) if text.startswith(word) else ""
        return cls(on, reason)

    def __str__(self) -> str:
        word = "on" if self.on else "off"
        if not self.reason:
            return word
        return f"{word}; {self.reason}" if self.on else f"{word}: {self.reason}"
