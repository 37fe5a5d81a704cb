"""Whether something that a run may do is done, and why."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Choice:
    """
    Whether an acceleration is on. As text, which `env.json` has: `on`, `on; REMARK`, `off` or `off: REASON`.

    Attributes:
        on (`bool`): Whether it is.
        reason (`str`, *optional*): Why it is off although a key says on or auto, or a remark on one that is on.
    """

    on: bool
    reason: str = ""

    def __str__(self) -> str:
        word = "on" if self.on else "off"
        if not self.reason:
            return word
        return f"{word}; {self.reason}" if self.on else f"{word}: {self.reason}"
