"""A reader that closes a pipe early, as `head` does, ends a command without a traceback."""

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager


READER_LEFT = 141  # 128 + SIGPIPE, as a shell has it


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Within it nothing complains that stdout's reader has left: what is unread is dropped, and the command ends."""
    try:
        yield
    except BrokenPipeError:
        if not _has_left():
            raise  # of another pipe
        raise SystemExit(READER_LEFT) from None
    finally:
        if _has_left():  # else Python complains as it writes the rest at its exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _has_left() -> bool:
    """Whether stdout is a pipe that nobody reads any more."""
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):  # it is closed, or no file
        return False
    pipe = select.poll()
    pipe.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in pipe.poll(0))
