"""The entry points of `eval`, and their lines for Ctrl-C."""

import functools
import sys

from trl_prorl.cli import ending


# Samples are written as they are drawn, and results atomically.
SAMPLES_KEPT = "finished samples are kept, and no result is half-written. Run the same command again to continue."

command = functools.partial(ending.command, kept=SAMPLES_KEPT)


def program_name(module: str) -> str:
    """Return the name of `eval.MODULE` in its usage line."""
    return sys.argv[0] if sys.argv[0].startswith("trl-prorl ") else f"python -m trl_prorl.eval.{module}"
