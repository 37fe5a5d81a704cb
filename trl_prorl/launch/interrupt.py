"""Ctrl-C, and one line about what it leaves behind."""

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from ..run.checkpoint import newest_complete


INTERRUPTED = 130  # 128 + SIGINT, as a shell has it
NOTHING_BEGUN = "no step was begun, and nothing has changed."


def end_interrupted(what: str, tell: bool = True, processes: int = 1) -> NoReturn:
    """
    End the process after Ctrl-C: one line on stderr, and exit code 130.

    Args:
        what (`str`):
            The line: what was kept, and how to go on.
        tell (`bool`, *optional*, defaults to `True`):
            Whether this process prints it.
        processes (`int`, *optional*, defaults to `1`):
            Processes of the run. Several do not wait for one another, because not all may still be there.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the line is written even if the key is pressed again
    if tell:
        print(f"interrupted: {what}", file=sys.stderr)
    if processes > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(INTERRUPTED)
    raise SystemExit(INTERRUPTED) from None


def what_is_kept(output_dir: str | os.PathLike, begun: bool, model: Path | None = None) -> str:
    """
    The line about what an interrupted run has left behind.

    Args:
        output_dir (`str` or `os.PathLike`):
            The run's.
        begun (`bool`):
            Whether a step was begun, in this process.
        model (`Path`, *optional*):
            A file of the model, if the run had come to its end.
    """
    checkpoint, _ = newest_complete(output_dir, content=False)
    go_on = "Go on with the same command and --resume_from_checkpoint True"
    if checkpoint is not None:
        return f"{checkpoint} and the record up to it are kept. {go_on}."
    if model:
        return f"the run had come to its end; its model and its record are in {Path(output_dir)}."
    if begun:
        return (
            f"the record in {Path(output_dir)} is kept, and there is no checkpoint yet. {go_on}, which begins again "
            "at step 0."
        )
    return NOTHING_BEGUN
