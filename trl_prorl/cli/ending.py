"""A command's first line, its errors in one line, and Ctrl-C."""

import argparse
import errno
import functools
import os
import pickle
import re
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from ..errors import InputError, RunError
from ..text import one_line, visible


BAD_INPUT = 2
STOPPED = 1
INTERRUPTED = 130  # 128 + SIGINT, as in a shell
READER_LEFT = 141  # 128 + SIGPIPE
DEBUG = "--debug"  # an option of every command: errors keep their traceback
NOTHING_BEGUN = "no step was started. Run the same command again."
NOTHING_CHANGED = "nothing has changed. Run the same command again."


class Ended(SystemExit):
    """A command has ended, and has printed the reason."""


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` whose errors are one line, like all others."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (--help lists the options)")


def announce(line: str) -> None:
    """Print a command's first line, before slow imports, in a launcher's first process."""
    if os.environ.get("RANK", "0") == "0":
        print(visible(line), file=sys.stderr, flush=True)


@contextmanager
def in_one_line(kept: str, debug: bool) -> Iterator[None]:
    """
    End the process with one line on stderr instead of a traceback. Exit codes: 2 for bad input, 1 for a run that had
    to stop, or a failed file operation, 130 for Ctrl-C, and 141 (without a line) if the reader of stdout has left,
    such as `head`. An unexpected error keeps its traceback.

    Args:
        kept (`str`): For Ctrl-C: what was saved, and how to continue.
        debug (`bool`): Whether every error keeps its traceback.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            with suppress(OSError):  # the file descriptor may belong to another file by now
                stream.reconfigure(errors="backslashreplace")  # the terminal may support only ASCII
    interrupt_as_usual()
    try:
        yield
    except BrokenPipeError:
        if not _reader_has_left():
            raise  # another pipe broke
        raise Ended(READER_LEFT) from None
    except KeyboardInterrupt:
        end_interrupted(kept)
    except (RunError, InputError, OSError) as error:
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)  # a write names no file
        is_of_file = not isinstance(error, OSError) or error.filename is not None  # such as a folder in its place
        if debug or not (is_of_file or is_full):
            raise
        if not any(getattr(one, "already_reported", False) for one in (error, error.__cause__)):
            cure = ". Free some space, then run the same command again." if is_full else ""
            print(f"error: {visible(one_line(error))}{cure}", file=sys.stderr)
        raise Ended(BAD_INPUT if isinstance(error, InputError) else STOPPED) from None
    finally:
        if _reader_has_left():  # otherwise Python prints an error when it flushes at exit
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())


def command(main: Callable, kept: str = NOTHING_CHANGED) -> Callable[..., int]:
    """Make an entry point return an exit code; `kept` as in [`in_one_line`]."""

    @functools.wraps(main)
    def run(argv: list[str] | None = None) -> int:
        argv = list(sys.argv[1:] if argv is None else argv)
        try:
            with in_one_line(kept, debug=DEBUG in argv):
                return main([argument for argument in argv if argument != DEBUG]) or 0
        except Ended as end:
            return end.code

    return run


@contextmanager
def as_bad_input() -> Iterator[None]:
    """
    Turn each `ValueError`, `OSError` and `ImportError`, and a library's refusals, into an [`InputError`]: so early,
    none is a bug.
    """
    try:
        yield
    except (InputError, RunError, BrokenPipeError):
        raise
    except Exception as error:
        if not isinstance(error, ValueError | OSError | ImportError) and not is_refusal_of_library(error):
            raise
        raise InputError(str(error)) from error


def is_refusal_of_library(error: Exception) -> bool:
    """Return whether TRL, transformers or PEFT rejected a value, some of which they check only in the first step."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    is_theirs = frame.f_globals["__name__"].partition(".")[0] in ("trl", "transformers", "peft")
    is_refusal = is_theirs and isinstance(error, ValueError | TypeError | RuntimeError | ImportError | OSError)
    return is_refusal or isinstance(error, re.error | pickle.UnpicklingError)


def _reader_has_left() -> bool:
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):  # it is closed, or not a file
        return False
    pipe = select.poll()
    pipe.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in pipe.poll(0))


# ---------------------------------------------------------------------------------------------------------- Ctrl-C


def interrupted_line(kept: str) -> str:
    """Return the line of Ctrl-C, below the terminal's `^C` and an unfinished progress bar."""
    return f"\ninterrupted: {kept}\n"


class EndAtOnce:
    """Signal handler for SIGINT: print the line, if there is one, and exit with code 130."""

    def __init__(self, kept: str | None = None):
        self.line = interrupted_line(kept).encode() if kept else b""

    def __call__(self, number, frame) -> NoReturn:
        os.write(2, self.line)  # `print` may have been interrupted
        os._exit(INTERRUPTED)


def end_at_once(kept: str) -> None:
    """
    Make Ctrl-C end the process while libraries are imported: some swallow a `KeyboardInterrupt`. An ignored SIGINT
    stays ignored.
    """
    ours = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is threading.main_thread():
        if ours is signal.default_int_handler or isinstance(ours, EndAtOnce):
            signal.signal(signal.SIGINT, EndAtOnce(kept))


def interrupt_as_usual() -> None:
    """Undo [`end_at_once`]."""
    if isinstance(signal.getsignal(signal.SIGINT), EndAtOnce):
        signal.signal(signal.SIGINT, signal.default_int_handler)


def end_interrupted(kept: str, prints: bool = True, processes: int = 1) -> NoReturn:
    """
    End the process after Ctrl-C: one line on stderr, and exit code 130.

    Args:
        kept (`str`): What was saved, and how to continue.
        prints (`bool`, *optional*, defaults to `True`): Whether this process prints it.
        processes (`int`, *optional*, defaults to `1`): Several processes do not wait for each other: some may be gone.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # print the line even if Ctrl-C is pressed again
    if prints:
        print(interrupted_line(kept), end="", file=sys.stderr)
    if processes > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(INTERRUPTED)
    signal.signal(signal.SIGINT, EndAtOnce())  # a further Ctrl-C exits immediately
    raise Ended(INTERRUPTED) from None


def warn_interrupted(error: KeyboardInterrupt, kept: str, prints: bool = True) -> None:
    """
    Print one line instead of the traceback of a `KeyboardInterrupt` in a user's own script.

    The script or a notebook may catch the error. Otherwise the process ends with exit code 130.

    Args:
        error (`KeyboardInterrupt`): The error.
        kept (`str`): What was saved, and how to continue.
        prints (`bool`, *optional*, defaults to `True`): Whether this process prints it.
    """
    if prints:
        print(interrupted_line(kept), end="", file=sys.stderr)
    others = sys.excepthook

    def end_without_traceback(kind, value, trace) -> None:
        if value is error:
            raise SystemExit(INTERRUPTED)  # Python's default exit code depends on what libraries do at exit
        others(kind, value, trace)

    sys.excepthook = end_without_traceback


def describe_saved_state(output_dir: str | os.PathLike, has_started: bool, go_on: str, restart: str) -> str:
    """
    Describe in one line what an interrupted run has saved.

    Args:
        output_dir (`str` or `os.PathLike`): Folder of the run.
        has_started (`bool`): Whether this process started a step.
        go_on (`str`): How to continue from a checkpoint.
        restart (`str`): How to start again without a checkpoint.
    """
    from ..run.folder import step_of, steps_of  # a command that only reads need not import it

    checkpoint = max(steps_of(Path(output_dir)), key=step_of, default=None)
    if checkpoint is not None:
        return f"{checkpoint} and the log files up to it are saved. Continue with {go_on}."
    if has_started:
        return f"{Path(output_dir)} contains log files but no checkpoint. Start again at step 0 with {restart}."
    return NOTHING_BEGUN
