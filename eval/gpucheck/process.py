"""A piece of work in a process of its own, which may crash, hang, or spoil its GPU's context."""

import contextlib
import ctypes
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


GRACE = 15.0  # seconds for a command to end what it has begun, before it is killed
PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


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
    process = context.Process(target=_called, args=(work, args, log, lead, os.getpid()))
    began = time.monotonic()
    process.start()
    try:
        process.join(limit)
        status = process.exitcode
    finally:
        if lead:  # also what it has left behind
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if process.is_alive():  # or was stopped before it led
            process.kill()
            process.join()
    return Ended(status, time.monotonic() - began)


def run_command(command: list[str], log: Path, limit: float, cwd: Path) -> int | None:
    """
    The exit status of a command whose output goes to a file, or `None` if it was stopped at its limit: first by
    SIGTERM, at which a launcher ends its workers, which are in sessions of their own.
    """
    with open(log, "w") as written:
        process = subprocess.Popen(command, cwd=cwd, stdout=written, stderr=written)
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE)
            if process.poll() is None:
                process.kill()
                process.wait()


def _end_with(parent: int) -> None:
    """On Linux, end when the parent ends: a SIGKILL does not let it end what it has begun, which would go on."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended already
            os._exit(1)


def _called(work: Callable, args: tuple, log: Path, lead: bool, parent: int) -> None:
    _end_with(parent)
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


# The line that names an exception. A worker's comes with its rank before it.
NAMED = re.compile(r"^(\[?rank ?\d+\]?: ?)?[\w.]*(Error|Exception|Interrupt|Exit)\b(: .*)?$")
OF_LAUNCHERS = ("CalledProcessError", "ChildFailedError")  # say only that a worker has failed


def last_words(log: Path) -> str:
    """
    The line of a log that names its last exception, or else its last line, or nothing. CUDA's errors end with advice
    to compile with assertions, and a launcher's with its own exception.
    """
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()] if log.exists() else []
    lines = [line for line in lines if line]
    named = [line for line in lines if NAMED.match(line) and not any(name in line for name in OF_LAUNCHERS)]
    return (named or lines or [""])[-1][:300]
