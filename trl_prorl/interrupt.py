"""Ctrl-C: it ends a process at once, or with one line in the place of a traceback."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


INTERRUPTED = 130  # 128 + SIGINT, as a shell has it
NOTHING_BEGUN = "no step was begun, and nothing has changed."
NOTHING_CHANGED = "nothing has changed. The same command begins anew."


class EndAtOnce:
    """Handler of SIGINT that ends the process: a line on stderr, if there is one to write, and exit code 130."""

    def __init__(self, what: str | None):
        self.line = f"interrupted: {what}\n".encode() if what else b""

    def __call__(self, number, frame) -> NoReturn:
        os.write(2, self.line)  # `print` may be what was interrupted
        os._exit(INTERRUPTED)


def end_at_once(what: str | None = None) -> None:
    """
    Make Ctrl-C end the process at once from now on: while libraries are imported, some of which swallow a
    `KeyboardInterrupt`, and where the line was written already. SIGINT stays ignored where it is.

    Args:
        what (`str`, *optional*): What was kept, and how to go on; without it no line is written.
    """
    ours = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is threading.main_thread():
        if ours is signal.default_int_handler or isinstance(ours, EndAtOnce):
            signal.signal(signal.SIGINT, EndAtOnce(what))


def interrupt_as_usual() -> None:
    """Undo [`end_at_once`]: Ctrl-C raises `KeyboardInterrupt` again."""
    if isinstance(signal.getsignal(signal.SIGINT), EndAtOnce):
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def ending_in_one_line(what: str) -> Iterator[None]:
    """Make Ctrl-C end the process, within this context, with one line that says what was kept, and exit code 130."""
    interrupt_as_usual()
    try:
        yield
    except KeyboardInterrupt:
        end_interrupted(what)


def end_interrupted(what: str, tell: bool = True, processes: int = 1) -> NoReturn:
    """
    End the process after Ctrl-C: one line on stderr, and exit code 130.

    Args:
        what (`str`): What was kept, and how to go on.
        tell (`bool`, *optional*, defaults to `True`): Whether this process prints it.
        processes (`int`, *optional*, defaults to `1`): Processes of the run. Several do not wait for one another,
            because not all may still be there.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the line is written even if the key is pressed again
    if tell:
        print(f"interrupted: {what}", file=sys.stderr)
    if processes > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(INTERRUPTED)
    raise SystemExit(INTERRUPTED) from None


class EndWithout:
    """An exception hook that ends the process without the traceback of one error; the hook before has others."""

    def __init__(self, error: BaseException):
        self.error = error
        self.before = sys.excepthook

    def __call__(self, kind, value, trace) -> None:
        if value is self.error:
            raise SystemExit(INTERRUPTED)  # Python's own code depends on what libraries do at its exit
        self.before(kind, value, trace)


def tell_interrupted(error: KeyboardInterrupt, what: str, tell: bool = True) -> None:
    """
    Print one line on stderr in the place of the traceback of a `KeyboardInterrupt` that is about to be raised again.

    For a user's own script: who catches the error goes on with it, and a notebook shows it; if nobody catches it,
    the process ends with exit code 130.

    Args:
        error (`KeyboardInterrupt`): The error.
        what (`str`): What was kept, and how to go on.
        tell (`bool`, *optional*, defaults to `True`): Whether this process prints it.
    """
    if tell:
        print(f"interrupted: {what}", file=sys.stderr)
    sys.excepthook = EndWithout(error)
