"""
The entry points of `eval`: what goes wrong is one line on stderr, and the exit code says whether the input was at
fault.
"""

import functools
import sys
from collections.abc import Callable

from trl_prorl.errors import InputError, RunError
from trl_prorl.interrupt import INTERRUPTED, end_at_once, interrupt_as_usual
from trl_prorl.pipes import reader_may_leave
from trl_prorl.text import visible


# Samples are written as they are drawn, and results as a whole.
KEPT = "samples that were drawn are kept, and no result is half-written. The same command goes on from there."


def program_name(module: str) -> str:
    """What the usage of `eval.MODULE` begins with."""
    return sys.argv[0] if sys.argv[0].startswith("trl-prorl ") else f"python -m trl_prorl.eval.{module}"


def command(main: Callable, bad_input: type[Exception] = InputError, kept: str = KEPT) -> Callable[..., int]:
    """
    Make an entry point return its exit code: its own, or 0; 2 for bad input, 1 for what could not be done, 130 for
    Ctrl-C. Who presses the key a second time need not wait for the end of the process.

    Args:
        main (`Callable`): Takes the command line, `None` for the process's own.
        bad_input (`type`, *optional*, defaults to [`InputError`]): What it raises for bad input.
        kept (`str`, *optional*): What Ctrl-C leaves, and how to go on.
    """

    @functools.wraps(main)
    @reader_may_leave()
    def run(argv: list[str] | None = None) -> int:
        interrupt_as_usual()
        try:
            code = main(argv)
        except (bad_input, RunError) as error:
            print(f"error: {visible(' '.join(str(error).split()))}", file=sys.stderr)
            return 1 if isinstance(error, RunError) else 2
        except KeyboardInterrupt:
            end_at_once()
            print(f"interrupted: {kept}", file=sys.stderr)
            return INTERRUPTED
        return code or 0

    return run
