"""Guard of reward functions: errors name function, row and prompt, and a call has a time limit."""

import asyncio
import copy
import functools
import math
import os
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from trl.trainer.utils import is_async_callable

from ..errors import NonFiniteRewardError, RewardError
from ..text import quoted, short


# Not SIGALRM: reward functions use it (math-verify's time limit does).
SIGNAL = signal.SIGRTMIN + 9
REPEAT_SECONDS = 1.0
VERIFIERS = ("batch_verifier", "verifier")  # attributes of a reward function: new and old name
ONE_EACH = " Return a list with one number or None per completion."


class DeadlineExceeded(BaseException):
    """Not an `Exception`, so that user code cannot swallow it."""


def call_within(seconds: float | None, function: Callable[[], Any]) -> Any:
    """
    Call a function, and raise [`DeadlineExceeded`] at its time limit in seconds (`None`: no limit).

    In the main thread a signal interrupts the call (native code when it returns). Other threads get no signals, so
    they run the function in a new thread and abandon it.
    """
    if seconds is None:
        return function()
    if threading.current_thread() is not threading.main_thread():
        return _call_aside(seconds, function)
    over = threading.Event()

    def interrupt(number, frame):
        if not over.is_set():
            raise DeadlineExceeded

    def interrupt_when_over():
        pause = seconds
        while not over.wait(pause):
            signal.pthread_kill(threading.main_thread().ident, SIGNAL)
            pause = REPEAT_SECONDS  # a bare `except:` may have swallowed the first

    previous = signal.signal(SIGNAL, interrupt)
    watcher = threading.Thread(target=interrupt_when_over, daemon=True)
    watcher.start()
    try:
        try:
            return function()
        finally:
            over.set()
    finally:
        over.set()  # again: the signal may have come just before the first call
        watcher.join()
        signal.signal(SIGNAL, signal.SIG_DFL if previous is None else previous)


def _call_aside(seconds: float, function: Callable[[], Any]) -> Any:
    outcome: Future[Any] = Future()

    def call():
        try:
            outcome.set_result(function())
        except BaseException as error:  # for the waiting thread
            outcome.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    if not wait([outcome], timeout=seconds).done:
        raise DeadlineExceeded
    return outcome.result()


# Files with the frames between a trainer and a reward function.
CALLERS = (__file__, os.path.dirname(asyncio.__file__) + os.sep)


def guard_reward(
    function: Callable, name: str, seconds: float | None, nonfinite: str, training: Callable[[], bool] = lambda: True
) -> Callable:
    """
    Wrap a reward function so that its errors are [`RewardError`]s, and it gets its own lists (see [`own_columns`]).

    A reward model is returned as it is, see [`treat_nonfinite`].

    Args:
        function (`Callable`): The reward function, which may be asynchronous.
        name (`str`): Its name, for messages.
        seconds (`float`, *optional*): Time limit of one batch; `None` means no limit.
        nonfinite (`str`): `"stop"` raises an error for NaN and infinity. `"skip"` returns both as infinity: TRL reads
            NaN as `None`, its mark for a function that does not apply. An evaluation has no step to skip, so it drops
            such rewards, as NaN.
        training (`Callable[[], bool]`): Returns whether a call is for training, not for an evaluation.
    """
    if isinstance(function, torch.nn.Module):
        return function
    guard = RewardGuard(function, name, seconds, nonfinite, training)
    if is_async_callable(function):

        async def guarded(**columns):
            return await guard.call_async(columns)

    else:

        def guarded(**columns):
            return guard.call(columns)

    if hasattr(function, "__name__"):
        functools.update_wrapper(guarded, function)
    for attribute in VERIFIERS:  # of an object, also of its class
        if callable(getattr(function, attribute, None)):
            setattr(guarded, attribute, getattr(function, attribute))
    return guarded


def treat_nonfinite(
    functions: Sequence[Callable], names: Sequence[str], rewards: torch.Tensor, nonfinite: str, training: bool
) -> torch.Tensor:
    """
    Treat NaN and infinity of reward models as [`guard_reward`] does, in rewards `(N, F)`: TRL would read a model's NaN
    as `None`. Raises [`NonFiniteRewardError`] with `nonfinite="stop"`.
    """
    for place, (function, name) in enumerate(zip(functions, names, strict=True)):
        broken = ~torch.isfinite(rewards[:, place])
        if not isinstance(function, torch.nn.Module) or not broken.any():
            continue
        if nonfinite == "stop":
            raise NonFiniteRewardError(
                f"reward model {name!r} returned {rewards[broken, place][0].item()} for {int(broken.sum())} of "
                f"{len(rewards)} completions. Fix it, or set nonfinite: skip."
            )
        rewards[broken, place] = math.inf if training else math.nan
    return rewards


@dataclass(frozen=True)
class RewardGuard:
    """Calls a reward function; the attributes are the arguments of [`guard_reward`]."""

    function: Callable
    name: str
    seconds: float | None
    nonfinite: str
    training: Callable[[], bool]

    def call(self, columns: dict[str, Any]) -> list:
        prompts = columns.get("prompts", [])
        own = own_columns(columns)
        try:
            # A generator runs only when it is read.
            rewards = call_within(self.seconds, lambda: read_generator(self.function(**own)))
        except DeadlineExceeded as error:
            raise self._too_late(prompts) from own_traceback(error)
        except Exception as error:
            raise self._failed(error, prompts) from own_traceback(error)
        return self._check(rewards, prompts)

    async def call_async(self, columns: dict[str, Any]) -> list:
        prompts = columns.get("prompts", [])
        limit = asyncio.timeout(self.seconds)
        try:
            async with limit:
                rewards = await self.function(**own_columns(columns))
        except Exception as error:
            if limit.expired():
                raise self._too_late(prompts) from own_traceback(error)
            raise self._failed(error, prompts) from own_traceback(error)  # possibly the function's own time-out
        if self.seconds is not None and asyncio.get_running_loop().time() > limit.when():
            raise self._too_late(prompts)  # it blocked the loop, so it was not interrupted
        return self._check(rewards, prompts)

    def _check(self, rewards: Any, prompts: list) -> list:
        if isinstance(rewards, (str, bytes, dict)) or not hasattr(rewards, "__iter__"):
            what = f"returned {type(rewards).__name__} instead of a list,"
            raise RewardError(self._describe(what, prompts, cure=ONE_EACH))
        rewards = list(rewards)
        if prompts and len(rewards) != len(prompts):
            what = f"returned {len(rewards)} rewards instead of {len(prompts)}, one per completion,"
            raise RewardError(self._describe(what, prompts, cure=ONE_EACH))
        return [self._check_one(reward, prompts, row) for row, reward in enumerate(rewards)]

    def _check_one(self, reward: Any, prompts: list, row: int) -> float | None:
        if reward is None:
            return None
        value = as_float(reward)
        if value is None:
            raise RewardError(self._describe(f"returned {short(reward)}, which is not a number,", prompts, row))
        if math.isfinite(value):
            return value
        if self.nonfinite == "stop":
            cure = " Fix it, return None for completions that it cannot score, or set nonfinite: skip."
            raise NonFiniteRewardError(self._describe(f"returned {value}", prompts, row, cure))
        return math.inf if self.training() else math.nan

    def _too_late(self, prompts: list) -> RewardError:
        what = f"did not return within reward_timeout={self.seconds:g} s"
        cure = " Make it faster, or raise reward_timeout (null: no limit)."
        return RewardError(self._describe(what, prompts, self._current_row(prompts), cure))

    def _failed(self, error: Exception, prompts: list) -> RewardError:
        what = f"raised {type(error).__name__}: {error}{locate_error(error, self.function)}"
        return RewardError(self._describe(what, prompts, self._current_row(prompts)))

    def _current_row(self, prompts: list) -> int | None:
        """Return the row that a task's reward function is at; an object of a script may have a `row` of its own."""
        row = getattr(self.function, "row", None)
        return row if type(row) is int and 0 <= row < len(prompts) else None

    def _describe(self, what: str, prompts: list, row: int | None = None, cure: str = "") -> str:
        if not prompts:
            where = ""
        elif row is None:
            where = f" for a batch of {len(prompts)} prompts starting with {quoted(prompts[0])}"
        else:
            where = f" for the prompt {quoted(prompts[row])}"
        return f"reward function {self.name!r} {what}{where}.{cure}"


SCALARS = {int, float, bool, str, bytes, type(None)}


def own_columns(columns: dict[str, Any]) -> dict[str, Any]:
    """Copy columns, except environments: a reward function may change their state."""
    return {name: values if name == "environments" else own_copy(values) for name, values in columns.items()}


def own_copy(value: Any) -> Any:
    """
    Copy nested containers, arrays and tensors: a function must not change another's arguments. Anything else is
    shared, such as images.
    """
    if type(value) is list and SCALARS.issuperset(map(type, value)):
        return value.copy()  # for token ids, thirty times faster
    if type(value) in (list, tuple, set):
        return type(value)(map(own_copy, value))
    if type(value) is dict:
        return {name: own_copy(each) for name, each in value.items()}
    if isinstance(value, list | dict):  # of another class, such as defaultdict
        own = copy.copy(value)
        for key in own if isinstance(own, dict) else range(len(own)):
            own[key] = own_copy(own[key])
        return own
    if isinstance(value, np.ndarray):
        return copy.deepcopy(value)  # rows of several lengths are an array of arrays
    if isinstance(value, torch.Tensor):
        return value.clone()
    return value


def own_traceback(error: BaseException) -> BaseException | None:
    """Trim a traceback to the reward function's part; `None` without one."""
    own = error.__traceback__
    while own is not None and own.tb_frame.f_code.co_filename.startswith(CALLERS):
        own = own.tb_next
    return None if own is None else error.with_traceback(own)


def locate_error(error: Exception, function: Callable) -> str:
    """Return the place of an error, or of the function's definition if it could not be called: `" (FILE, line N)"`."""
    own = own_traceback(error)
    if own is not None:
        frame = traceback.extract_tb(own.__traceback__)[-1]
        return f" ({frame.filename}, line {frame.lineno})"
    code = getattr(function, "__code__", None)
    return "" if code is None else f" ({code.co_filename}, line {code.co_firstlineno})"


def as_float(reward: Any) -> float | None:
    """Convert a number, a NumPy scalar or a tensor of one value; `None` for anything else, also text."""
    if isinstance(reward, (str, bytes)):
        return None
    try:
        return float(reward)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def read_generator(rewards: Any) -> Any:
    return list(rewards) if hasattr(rewards, "__next__") else rewards
