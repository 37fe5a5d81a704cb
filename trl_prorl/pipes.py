"""A reader that closes a pipe early, as `head` does, ends a command without a traceback."""

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager


READER_LEFT = 141  # 128 + SIGPIPE, as a shell has it


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Let stdout's reader leave: what is unread is dropped, the command ends, and nothing complains."""
    try:
        yield
    except BrokenPipeError:
        if not _has_left():
            raise  # of another pipe
        raise SystemExit(READER_LEFT) from None
    finally:
        if _has_left():  # else Python complains as it writes the rest at its exit
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())


def _has_left() -> bool:
    """Return whether stdout is a pipe that nobody reads any more."""
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):  # it is closed, or no file
        return False
    pipe = select.poll()
    pipe.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in pipe.poll(0))
