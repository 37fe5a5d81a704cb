"""Guarded reward functions: an error names the function and the prompt, and a call has a time limit."""

import asyncio
import functools
import math
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any

import torch
from trl.trainer.utils import is_async_callable

from ..errors import NonFiniteRewardError, RewardError
from ..text import quoted


# Not SIGALRM, because reward functions have alarms of their own (math-verify's time limit is one).
SIGNAL = signal.SIGRTMIN + 9
REPEAT_SECONDS = 1.0


class DeadlineExceeded(BaseException):
    """Not an `Exception`, so that the code under the limit does not swallow it."""


def call_within(seconds: float | None, function: Callable[[], Any]) -> Any:
    """
    Call a function, and interrupt it when its time is over. In the main thread a signal interrupts it, in Python code
    and in system calls alike; native code that holds the interpreter's lock is interrupted when it returns. Other
    threads get no signals; from there the function runs in a thread of its own and is abandoned. `seconds`: the limit;
    `None` means no limit. Raises [`DeadlineExceeded`]: the function took longer.
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
        pause = seconds
        while not over.wait(pause):
            signal.pthread_kill(threading.main_thread().ident, SIGNAL)
            pause = REPEAT_SECONDS  # a bare `except:` may have swallowed the first

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
    outcome: Future[Any] = Future()

    def call():
        try:
            outcome.set_result(function())
        except BaseException as error:  # for the thread that waits
            outcome.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    if not wait([outcome], timeout=seconds).done:
        raise DeadlineExceeded
    return outcome.result()


# Files whose frames lie between a trainer and a reward function.
CALLERS = (__file__, os.path.dirname(asyncio.__file__) + os.sep)


def watched(
    function: Callable, name: str, seconds: float | None, nonfinite: str, training: Callable[[], bool] = lambda: True
) -> Callable:
    """
    A reward function, as TRL calls it, that raises [`RewardError`] in place of any other error. A reward model is left
    as it is, see [`settle_models`]. `seconds`: its time limit for one batch. `nonfinite`: `"stop"` refuses NaN and
    infinity. `"skip"` passes both on as infinity, because TRL reads NaN as `None`, its sign that a function does not
    apply to a completion; `None` is always allowed. An evaluation has no step to leave out, so such rewards are left
    out there, as NaN.
    `training`: whether a call is for training and not for an evaluation.
    """

    if isinstance(function, torch.nn.Module):
        return function

    def line(what: str, prompts: list, row: int | None = None, cure: str = "") -> str:
        of = f" for a batch of {len(prompts)} that begins with {quoted(prompts[0])}" if prompts else ""
        if prompts and row is not None:
            of = f" for the prompt {quoted(prompts[row])}"
        return f"reward function {name!r} {what}{of}.{cure}"

    def wrong(what: str, prompts: list, row: int | None = None, cure: str = "") -> RewardError:
        return RewardError(line(what, prompts, row, cure))

    @contextmanager
    def named(prompts: list, late: type[BaseException]) -> Iterator[None]:
        try:
            yield
        except (late, Exception) as error:
            what, cure = f"raised {type(error).__name__}: {error}{place(error, function)}", ""
            if isinstance(error, late):
                what = f"did not return within reward_timeout={seconds:g} s"
                cure = " Mend it, or raise reward_timeout (null: no limit)."
            row = getattr(function, "row", None)  # a function may say which row it is at
            raise wrong(what, prompts, row, cure) from own_traceback(error)

    def check(rewards: Any, prompts: list) -> list:
        if isinstance(rewards, (str, bytes, dict)) or not hasattr(rewards, "__iter__"):
            raise wrong(f"returned {type(rewards).__name__}, not a list of one number a completion,", prompts)
        rewards = list(rewards)
        if prompts and len(rewards) != len(prompts):
            what = f"returned {len(rewards)} rewards where {len(prompts)} were expected, one a completion,"
            raise wrong(what, prompts)
        for row, reward in enumerate(rewards):
            if reward is None:
                continue
            value = as_float(reward)
            if value is None:
                raise wrong(f"returned {reward!r}, which is not a number,", prompts, row)
            if not math.isfinite(value):
                if nonfinite == "stop":
                    cure = " Mend it, return None where it does not apply, or set nonfinite: skip."
                    raise NonFiniteRewardError(line(f"returned {value}", prompts, row, cure))
                rewards[row] = math.inf if training() else math.nan
        return rewards

    if is_async_callable(function):

        async def watch(**columns):
            prompts = columns.get("prompts", [])
            with named(prompts, TimeoutError):
                rewards = await asyncio.wait_for(function(**columns), seconds)
            return check(rewards, prompts)

    else:

        def watch(**columns):
            prompts = columns.get("prompts", [])
            with named(prompts, DeadlineExceeded):  # a generator runs only when it is read
                rewards = call_within(seconds, lambda: materialised(function(**columns)))
            return check(rewards, prompts)

    return functools.update_wrapper(watch, function) if hasattr(function, "__name__") else watch


def settle_models(
    functions: Sequence[Callable], names: Sequence[str], rewards: torch.Tensor, nonfinite: str, training: bool
) -> torch.Tensor:
    """
    The rewards of all functions, shape `(N, F)`, in which NaN and infinity of a reward model are what [`watched`]
    makes of those of a function. A model has no `None`, for which TRL would take its NaN. Raises
    [`NonFiniteRewardError`]: with `nonfinite="stop"`, naming the model.
    """
    for place, (function, name) in enumerate(zip(functions, names, strict=True)):
        broken = ~torch.isfinite(rewards[:, place])
        if not isinstance(function, torch.nn.Module) or not broken.any():
            continue
        if nonfinite == "stop":
            raise NonFiniteRewardError(
                f"reward model {name!r} returned {rewards[broken, place][0].item()} for {int(broken.sum())} of "
                f"{len(rewards)} completions. Mend it, or set nonfinite: skip."
            )
        rewards[broken, place] = math.inf if training else math.nan
    return rewards


def own_traceback(error: BaseException) -> BaseException | None:
    """
    An error with the part of its traceback that is a reward function's own; `None` if there is none, because the
    function was never entered or went on elsewhere. Its author looks for these lines, and in a script of theirs Python
    prints them.
    """
    own = error.__traceback__
    while own is not None and own.tb_frame.f_code.co_filename.startswith(CALLERS):
        own = own.tb_next
    return None if own is None else error.with_traceback(own)


def place(error: Exception, function: Callable) -> str:
    """`" (FILE, line N)"`: where a function raised, or where it is defined if it could not even be called."""
    own = own_traceback(error)
    if own is not None:
        frame = traceback.extract_tb(own.__traceback__)[-1]
        return f" ({frame.filename}, line {frame.lineno})"
    code = getattr(function, "__code__", None)
    return "" if code is None else f" ({code.co_filename}, line {code.co_firstlineno})"


def as_float(reward: Any) -> float | None:
    """
    A number, a NumPy scalar or a tensor of one value as a float; `None` for anything else, including a string of
    digits.
    """
    if isinstance(reward, (str, bytes)):
        return None
    try:
        return float(reward)
    except (TypeError, ValueError, RuntimeError):
        return None


def materialised(rewards: Any) -> Any:
    return list(rewards) if hasattr(rewards, "__next__") else rewards
