"""The entry points of `eval`: what they are called, and what Ctrl-C leaves of them."""

import functools
import sys

from trl_prorl import ending


# Samples are written as they are drawn, and results as a whole.
KEPT = "samples that were drawn are kept, and no result is half-written. The same command goes on from there."

command = functools.partial(ending.command, kept=KEPT)


def program_name(module: str) -> str:
    """What the usage of `eval.MODULE` begins with."""
    return sys.argv[0] if sys.argv[0].startswith("trl-prorl ") else f"python -m trl_prorl.eval.{module}"
