"""The description of a part."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trl_prorl.eval.gpucheck.result import Result
from trl_prorl.eval.gpucheck.size import Size


NAMES = (
    *("parity", "equivalences", "resets", "timers", "models", "stops", "resume", "sharding", "tests"),
    *("cost", "cost-large", "attention", "generation"),
)  # of all parts, in their order
MOST = 480  # seconds of a part


@dataclass(frozen=True)
class Part:
    """
    Attributes:
        name (`str`): Of its files, and on the command line.
        title (`str`): Of its section.
        run (`Callable`): Does the work: from a size and a folder of its own to a [`Result`].
        needs (`tuple[str, ...]`): Without which all of it is skipped.
        limit (`int`): Seconds on a card after which it is stopped.
    """

    name: str
    title: str
    run: Callable[[Size, Path], Result]
    needs: tuple[str, ...] = ()
    limit: int = 120

    def __post_init__(self):
        if not 0 < self.limit <= MOST:
            raise ValueError(f"limit={self.limit} of the part {self.name}: at most {MOST} seconds.")
