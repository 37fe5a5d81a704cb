"""A piece of work in a process of its own, which may crash, hang, or spoil its GPU's context."""

import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from trl_prorl.own_packages import run_claimed


class Ended(NamedTuple):
    """
    Attributes:
        status (`int` or `None`): Exit status, negative for a signal; `None` if the work was stopped at its limit.
        seconds (`float`): How long it took.
    """

    status: int | None
    seconds: float


def run_apart(work: Callable, args: tuple, log: Path, limit: float, fork: bool, lead: bool = False) -> Ended:
    """
    Call a function in another process, whose output goes to a file.

    Args:
        work (`Callable`): A function of a module.
        args (`tuple`): Its arguments, which can be pickled.
        log (`Path`): Gets stdout and stderr.
        limit (`float`): Seconds after which the process is killed, with those that it has started if it leads a group.
        fork (`bool`): Whether it is a copy of this process, which costs no imports; never if CUDA is in use.
        lead (`bool`, *optional*, defaults to `False`): Whether it leads a process group of its own.
    """
    context = multiprocessing.get_context("fork" if fork else "spawn")
    call = pickle.dumps((_called, (work, args, log, lead)))
    process = context.Process(target=run_claimed, args=(call,))
    began = time.monotonic()
    process.start()
    try:
        process.join(limit)
        status = process.exitcode
    finally:
        if process.is_alive():
            _kill(process.pid, lead)
            process.join()
    return Ended(status, time.monotonic() - began)


def _kill(pid: int, lead: bool) -> None:
    try:
        (os.killpg if lead else os.kill)(pid, signal.SIGKILL)
    except ProcessLookupError:
        if lead:  # it was stopped before it led
            os.kill(pid, signal.SIGKILL)


def _called(work: Callable, args: tuple, log: Path, lead: bool) -> None:
    if lead:
        os.setpgid(0, 0)
    status = 1
    sys.stdout = sys.stderr = file = open(log, "a", buffering=1)  # until the process ends
    for stream in (1, 2):  # of what is not Python
        os.dup2(file.fileno(), stream)
    try:
        work(*args)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        file.flush()
        os._exit(status)  # no threads of a GPU, of a data loader or of a copied process are waited for


def last_words(log: Path) -> str:
    """The last line of a log, or nothing."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()] if log.exists() else []
    return next((line for line in reversed(lines) if line), "")[:300]
