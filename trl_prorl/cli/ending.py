"""A command's first line, its errors in one line, and Ctrl-C."""

import argparse
import functools
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from ..errors import InputError, RunError
from ..text import one_line, visible, visible_lines


BAD_INPUT = 2
STOPPED = 1
INTERRUPTED = 130  # 128 + SIGINT, as in a shell
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


class VisibleLines(logging.Formatter):
    """Shows log records without the control characters of their values."""

    def format(self, record: logging.LogRecord) -> str:
        return visible_lines(super().format(record))


def print_traceback(*error) -> None:
    """Print the traceback of an unexpected error, whose text may be a file's."""
    print(visible_lines("".join(traceback.format_exception(*error))), end="", file=sys.stderr)


@contextmanager
def in_one_line(kept: str, debug: bool) -> Iterator[None]:
    """
    End the process with one line on stderr instead of a traceback: exit code 2 for bad input, 1 for a run that had to
    stop, 130 for Ctrl-C (`kept`: what was saved). An unexpected error keeps its traceback; with `debug`, every one.
    """
    logging.lastResort.setFormatter(VisibleLines())
    sys.excepthook = print_traceback
    try:
        yield
    except KeyboardInterrupt:
        print_interrupted(kept)
        raise Ended(INTERRUPTED) from None
    except (RunError, InputError, OSError) as error:
        if debug:
            raise
        if not any(getattr(each, "already_reported", False) for each in (error, error.__cause__)):
            print(f"error: {visible(one_line(error))}", file=sys.stderr)
        raise Ended(BAD_INPUT if isinstance(error, InputError) else STOPPED) from None


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
    """Turn errors into [`InputError`]s: so early, none is a bug."""
    try:
        yield
    except (ValueError, TypeError, OSError, ImportError) as error:
        raise error if isinstance(error, InputError) else InputError(str(error)) from error


def print_interrupted(kept: str) -> None:
    """Print the line of Ctrl-C, below the terminal's `^C` and an unfinished progress bar."""
    print(f"\ninterrupted: {visible(kept)}", file=sys.stderr)


def describe_saved_state(output_dir: str | os.PathLike, has_started: bool, go_on: str) -> str:
    """
    Describe in one line what an interrupted run has saved.

    Args:
        output_dir (`str` or `os.PathLike`): Folder of the run.
        has_started (`bool`): Whether this process started a step.
        go_on (`str`): How to continue from a checkpoint, or to start again without one.
    """
    from ..run.folder import step_of, steps_of, unusable_reason  # a command that only reads need not import it

    whole = [path for path in steps_of(Path(output_dir)) if unusable_reason(path, content=False) is None]
    checkpoint = max(whole, key=step_of, default=None)
    if checkpoint is not None:
        return f"{checkpoint} and the log files up to it are saved. Continue with {go_on}."
    if has_started:
        unsaved = f"{Path(output_dir)} contains log files but no checkpoint (set save_strategy: steps and save_steps)"
        return f"{unsaved}. Start again at step 0 with {go_on}."
    return NOTHING_BEGUN
