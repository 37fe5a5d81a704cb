"""Guard of reward functions: errors name function, place, row and prompt, and a call has a time limit."""

import asyncio
import functools
import math
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from trl.trainer.utils import is_async_callable

from ..errors import NonFiniteRewardError, RewardError
from ..text import quoted, short


# Not SIGALRM: reward functions use it (math-verify's time limit does).
SIGNAL = signal.SIGRTMIN + 9
REPEAT_SECONDS = 1.0
VERIFIERS = ("batch_verifier", "verifier")  # attributes of a reward function: new and old name


class DeadlineExceeded(BaseException):
    """Not an `Exception`, so that user code cannot swallow it."""


def call_within(seconds: float | None, function: Callable[[], Any]) -> Any:
    """
    Call a function, and raise [`DeadlineExceeded`] at its time limit in seconds (`None`: no limit).

    A signal interrupts the call (native code when it returns). Only the main thread gets signals, so calls of other
    threads have no limit.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        return function()
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


def guard_reward(
    function: Callable, name: str, seconds: float | None, nonfinite: str, training: Callable[[], bool] = lambda: True
) -> Callable:
    """
    Wrap a reward function so that its errors are [`RewardError`]s. A reward model is returned as it is, see
    [`treat_nonfinite`].

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

    functools.update_wrapper(guarded, function)
    for attribute in VERIFIERS:
        if hasattr(function, attribute):  # an object's class may have it
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

    def call(self, columns: dict[str, Any]) -> list[float | None]:
        prompts = columns.get("prompts", [])  # a script may call it for environments alone
        try:
            rewards = call_within(self.seconds, lambda: as_list(self.function(**columns)))
        except DeadlineExceeded as error:
            raise self._too_late(prompts) from error
        except Exception as error:
            raise self._failed(error, prompts) from error
        return self._check(rewards, prompts)

    async def call_async(self, columns: dict[str, Any]) -> list[float | None]:
        prompts = columns.get("prompts", [])  # a script may call it for environments alone
        limit = asyncio.timeout(self.seconds)
        try:
            async with limit:
                rewards = as_list(await self.function(**columns))
        except Exception as error:
            if limit.expired():  # else a TimeoutError is the function's own
                raise self._too_late(prompts) from error
            raise self._failed(error, prompts) from error
        return self._check(rewards, prompts)

    def _check(self, rewards: list, prompts: list) -> list[float | None]:
        if prompts and len(rewards) != len(prompts):
            problem = f"returned {len(rewards)} rewards instead of {len(prompts)}, one per completion,"
            raise RewardError(self._describe(problem, prompts))
        return [self._check_one(reward, prompts, row) for row, reward in enumerate(rewards)]

    def _check_one(self, reward: Any, prompts: list, row: int) -> float | None:
        if reward is None:
            return None
        try:
            if isinstance(reward, str):  # "0.5", which TRL refuses too
                raise TypeError
            value = float(reward)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            problem = f"returned {short(reward)}, which is not a number,"
            raise RewardError(self._describe(problem, prompts, row)) from error
        if math.isfinite(value):
            return value
        if self.nonfinite == "stop":
            cure = " Fix it, return None for completions that it cannot score, or set nonfinite: skip."
            raise NonFiniteRewardError(self._describe(f"returned {value}", prompts, row) + cure)
        return math.inf if self.training() else math.nan

    def _too_late(self, prompts: list) -> RewardError:
        problem = self._describe(f"did not return within reward_timeout={self.seconds:g} s", prompts)
        return RewardError(f"{problem} Make it faster, or raise reward_timeout (null: no limit).")

    def _failed(self, error: Exception, prompts: list) -> RewardError:
        row = getattr(self.function, "row", None)  # a function may set it to the row that it is at
        place = find_place(error, self.function)
        problem = f"raised {type(error).__name__}: {error}{place}"
        return RewardError(self._describe(problem, prompts, row if row in range(len(prompts)) else None))

    def _describe(self, problem: str, prompts: list, row: int | None = None) -> str:
        if not prompts:
            return f"reward function {self.name!r} {problem}."
        if row is None:
            rows = f"a batch of {len(prompts)} prompts starting with {quoted(prompts[0])}"
        else:
            rows = f"the prompt {quoted(prompts[row])}"
        return f"reward function {self.name!r} {problem} for {rows}."


def as_list(rewards: Any) -> list:
    """Return rewards as a list, also of a generator. Raises `TypeError` for a dict, whose list has its keys."""
    if isinstance(rewards, dict):
        raise TypeError("a reward function returns a list, not a dict")
    return list(rewards)


def find_place(error: Exception, function: Callable) -> str:
    """Return the place of an error, or of the function's definition if it could not be called: `" (FILE, line N)"`."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    if frame.filename != __file__:
        return f" ({frame.filename}, line {frame.lineno})"
    code = getattr(function, "__code__", None)
    return "" if code is None else f" ({code.co_filename}, line {code.co_firstlineno})"
