"""
How a command begins and ends: its first line, one line on stderr in the place of a traceback, and what Ctrl-C leaves.
"""

import functools
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from .errors import InputError, RunError
from .text import visible


BAD_INPUT = 2
STOPPED = 1
INTERRUPTED = 130  # 128 + SIGINT, as a shell has it
READER_LEFT = 141  # 128 + SIGPIPE
DEBUG = "--debug"  # an option of every command: an error keeps its traceback
NOTHING_BEGUN = "no step was begun, and nothing has changed."
NOTHING_CHANGED = "nothing has changed. The same command begins anew."


class Ended(SystemExit):
    """A command has ended, and has said why."""


def announce(line: str) -> None:
    """
    Write the first line of a command, before it imports what takes seconds. Of several processes that a launcher has
    started, the first one writes it.
    """
    if os.environ.get("RANK", "0") == "0":
        print(visible(line), file=sys.stderr, flush=True)


@contextmanager
def in_one_line(
    kept: str, bad_input: type[Exception] | tuple[type[Exception], ...] = InputError, debug: bool = False
) -> Iterator[None]:
    """
    End the process, within this context, with one line on stderr in the place of a traceback. The exit code is 2 for
    bad input, 1 for a run that has to stop and 130 for Ctrl-C; if the reader of stdout has left, as `head` does, it is
    141, without a line. An error that nobody foresaw keeps its traceback.

    Args:
        kept (`str`): What Ctrl-C leaves, and how to go on.
        bad_input (`type` or `tuple`, *optional*, defaults to [`InputError`]): What is raised for bad input.
        debug (`bool`, *optional*, defaults to `False`): Whether every error keeps its traceback.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            with suppress(OSError):  # of a file descriptor that has become another file's since
                stream.reconfigure(errors="backslashreplace")  # a terminal may be of ASCII alone
    interrupt_as_usual()
    try:
        yield
    except BrokenPipeError:
        if not _reader_has_left():
            raise  # of another pipe
        raise Ended(READER_LEFT) from None
    except KeyboardInterrupt:
        end_interrupted(kept)
    except RunError as error:
        if debug:
            raise
        end_refused(error, STOPPED)
    except bad_input as error:
        if debug:
            raise
        end_refused(error, BAD_INPUT)
    finally:
        if _reader_has_left():  # else Python complains as it writes the rest at its exit
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())


def command(
    main: Callable, bad_input: type[Exception] | tuple[type[Exception], ...] = InputError, kept: str = NOTHING_CHANGED
) -> Callable[..., int]:
    """
    Make an entry point return its exit code, see [`in_one_line`]: its own, or 0.

    Args:
        main (`Callable`): Takes the command line.
        bad_input (`type` or `tuple`, *optional*), kept (`str`, *optional*): As of [`in_one_line`].
    """

    @functools.wraps(main)
    def run(argv: list[str] | None = None) -> int:
        argv = list(sys.argv[1:] if argv is None else argv)
        try:
            with in_one_line(kept, bad_input, debug=DEBUG in argv):
                return main([argument for argument in argv if argument != DEBUG]) or 0
        except Ended as end:
            return end.code

    return run


@contextmanager
def as_bad_input() -> Iterator[None]:
    """Make an [`InputError`] of each `ValueError`, `OSError` and `ImportError`, which are nobody's bug so early."""
    try:
        yield
    except (InputError, RunError, BrokenPipeError):
        raise
    except ImportError as error:
        from .upstream import with_cure

        raise InputError(str(with_cure(error))) from error
    except (ValueError, OSError) as error:
        raise InputError(str(error)) from error


def is_refusal_of_library(error: Exception) -> bool:
    """Return whether TRL, transformers or PEFT raised an error themselves: some look at a key in the first step."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals["__name__"].partition(".")[0] in ("trl", "transformers", "peft")


def end_refused(error: Exception, code: int) -> NoReturn:
    """End the process with one line on stderr, unless another process of the run writes it."""
    if not any(getattr(one, "said_elsewhere", False) for one in (error, error.__cause__)):
        print(f"error: {visible(' '.join(str(error).split()))}", file=sys.stderr)
    raise Ended(code) from None


def _reader_has_left() -> bool:
    """Return whether stdout is a pipe that nobody reads any more."""
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):  # it is closed, or no file
        return False
    pipe = select.poll()
    pipe.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in pipe.poll(0))


# ---------------------------------------------------------------------------------------------------------- Ctrl-C


class EndAtOnce:
    """Handler of SIGINT that ends the process: a line on stderr, if there is one to write, and exit code 130."""

    def __init__(self, kept: str | None = None):
        self.line = f"interrupted: {kept}\n".encode() if kept else b""

    def __call__(self, number, frame) -> NoReturn:
        os.write(2, self.line)  # `print` may be what was interrupted
        os._exit(INTERRUPTED)


def end_at_once(kept: str) -> None:
    """
    Make Ctrl-C end the process at once while libraries are imported, some of which swallow a `KeyboardInterrupt`.
    SIGINT stays ignored where it is.
    """
    ours = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is threading.main_thread():
        if ours is signal.default_int_handler or isinstance(ours, EndAtOnce):
            signal.signal(signal.SIGINT, EndAtOnce(kept))


def interrupt_as_usual() -> None:
    """Undo [`end_at_once`]: Ctrl-C raises `KeyboardInterrupt` again."""
    if isinstance(signal.getsignal(signal.SIGINT), EndAtOnce):
        signal.signal(signal.SIGINT, signal.default_int_handler)


def end_interrupted(kept: str, tell: bool = True, processes: int = 1) -> NoReturn:
    """
    End the process after Ctrl-C: one line on stderr, and exit code 130.

    Args:
        kept (`str`): What was kept, and how to go on.
        tell (`bool`, *optional*, defaults to `True`): Whether this process prints it.
        processes (`int`, *optional*, defaults to `1`): Processes of the run. Several do not wait for one another,
            because not all may still be there.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the line is written even if the key is pressed again
    if tell:
        print(f"interrupted: {kept}", file=sys.stderr)
    if processes > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(INTERRUPTED)
    signal.signal(signal.SIGINT, EndAtOnce())  # who presses it once more need not wait for the process's exit
    raise Ended(INTERRUPTED) from None


def tell_interrupted(error: KeyboardInterrupt, kept: str, tell: bool = True) -> None:
    """
    Print one line on stderr in the place of the traceback of a `KeyboardInterrupt` that is about to be raised again.

    For a user's own script: who catches the error goes on with it, and a notebook shows it; if nobody catches it,
    the process ends with exit code 130.

    Args:
        error (`KeyboardInterrupt`): The error.
        kept (`str`): What was kept, and how to go on.
        tell (`bool`, *optional*, defaults to `True`): Whether this process prints it.
    """
    if tell:
        print(f"interrupted: {kept}", file=sys.stderr)
    others = sys.excepthook

    def end_without_traceback(kind, value, trace) -> None:
        if value is error:
            raise SystemExit(INTERRUPTED)  # Python's own code depends on what libraries do at its exit
        others(kind, value, trace)

    sys.excepthook = end_without_traceback


def describe_saved_state(output_dir: str | os.PathLike, begun: bool, go_on: str, anew: str) -> str:
    """
    Describe what an interrupted run has left behind, in one line.

    Args:
        output_dir (`str` or `os.PathLike`): Its folder.
        begun (`bool`): Whether this process began a step.
        go_on (`str`): What continues from a checkpoint.
        anew (`str`): What begins again where there is none.
    """
    from .checkpoint.files import find_newest_checkpoint  # a command that only reads need not import it

    checkpoint, _ = find_newest_checkpoint(output_dir, content=False)
    if checkpoint is not None:
        return f"{checkpoint} and the record up to it are kept. Go on with {go_on}."
    if begun:
        return f"the record in {Path(output_dir)} is kept without a checkpoint: {anew} begins again at step 0."
    return NOTHING_BEGUN
