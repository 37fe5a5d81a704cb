"""A time limit for a call into foreign Python code."""

import signal
import threading
from collections.abc import Callable
from typing import Any


# Not SIGALRM, because reward functions have alarms of their own (math-verify's time limit is one).
SIGNAL = signal.SIGRTMIN + 9
REPEAT_SECONDS = 1.0


class DeadlineExceeded(BaseException):
    """Not an `Exception`, so that the code under the limit does not swallow it."""


def call_within(seconds: float | None, function: Callable[[], Any]) -> Any:
    """
    Call a function, and interrupt it when its time is over.

    In the main thread a signal interrupts it, in Python code and in system calls alike; native code that holds the
    interpreter's lock is interrupted when it returns. Other threads get no signals; from there the function runs in a
    thread of its own and is abandoned.

    Args:
        seconds (`float` or `None`): The limit; `None` means no limit.
        function (`Callable`): The function, which takes no arguments.

    Raises [`DeadlineExceeded`]: the function took longer.
    """
    if seconds is None:
        return function()
    if threading.current_thread() is not threading.main_thread():
        return _call_aside(seconds, function)
    over = threading.Event()

    def interrupt(number, frame):
        if not over.is_set():
            raise DeadlineExceeded

    def watch():
        wait = seconds
        while not over.wait(wait):
            signal.pthread_kill(threading.main_thread().ident, SIGNAL)
            wait = REPEAT_SECONDS  # a bare `except:` may have swallowed the first

    previous = signal.signal(SIGNAL, interrupt)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        try:
            return function()
        finally:
            over.set()
    finally:
        over.set()  # again, because the signal may have come just before the first call
        watcher.join()
        signal.signal(SIGNAL, signal.SIG_DFL if previous is None else previous)


def _call_aside(seconds: float, function: Callable[[], Any]) -> Any:
    outcome: list[tuple[str, Any]] = []

    def call():
        try:
            outcome.append(("value", function()))
        except BaseException as error:  # for the thread that waits
            outcome.append(("error", error))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise DeadlineExceeded
    kind, value = outcome[0]
    if kind == "error":
        raise value
    return value
