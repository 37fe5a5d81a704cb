"""The first line of a command, which says what it is about to do before libraries are imported that take seconds."""

import os
import sys

from .text import visible


def announce(line: str) -> None:
    """Write a line on stderr; of several processes that a launcher has started, the first one writes it."""
    if os.environ.get("RANK", "0") == "0":
        print(visible(line), file=sys.stderr, flush=True)
