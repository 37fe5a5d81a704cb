"""
The outcome of sampling a generation batch: rewards by function, tokens, tasks, interruptions; and its advantages
where they are not TRL's: another estimator, rows to leave out, rewards without bounds.
"""

import asyncio
import functools
import math
import os
import signal
import threading
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object
from transformers.trainer_utils import has_length
from trl.trainer.utils import is_async_callable, nanstd

from .advantages import UNGROUPED, all_equal, estimate
from .errors import NonFiniteRewardError, RewardError
from .meter import weighted_mean
from .pass_at_k import as_verdict, pass_at_k
from .text import quoted


if TYPE_CHECKING:
    from .config import ProRLConfig


@dataclass
class Outcome:
    """
    Holds the results of sampling in addition to the batch.

    N completions of all processes, G of each prompt, F reward functions.

    Attributes:
        rewards (`torch.Tensor` of shape `(N, F)`): NaN where a function does not apply.
        group_size (`int`): G.
        tokens (`torch.Tensor`): Tokens of this process's completions, truncated ones included; the trainer takes off
            those that no model sampled.
        tasks (`list[str | None]`): The task of each completion.
        interrupted (`list[bool]`): Whether each was interrupted and asked for its answer; empty if none ever is.
        rounds (`list[torch.Tensor]`): The rewards of every round of sampling, in order.
        correct (`list[bool]`): The verifier's verdicts, N of them; empty without a verifier.
        completions (`list`): This process's completions as reward functions get them.
        ids (`list[list[int]]`): Their tokens.
        seconds (`float`): How long all reward functions took.
        measured (`dict[str, float]`): Its entries in `metrics.jsonl`.
        counts (`dict[str, int]`): The rows that an entry is a mean of, where those are not all.
    """

    rewards: torch.Tensor
    group_size: int
    tokens: torch.Tensor
    tasks: list[str | None]
    interrupted: list[bool]
    rounds: list[torch.Tensor] = field(default_factory=list)
    correct: list[bool] = field(default_factory=list)
    completions: list = field(default_factory=list)
    ids: list[list[int]] = field(default_factory=list)
    seconds: float = 0.0
    measured: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        rewards: torch.Tensor,
        group_size: int,
        examples: list[dict],
        completions: list,
        completion_ids: list[list[int]],
        correct: list[bool] = (),
        seconds: float = 0.0,
    ) -> "Outcome":
        """
        Make the outcome from the arguments and the result of TRL's `_calculate_rewards`.

        A completion mask would lack the tokens that `mask_truncated_completions` keeps out of the loss.

        Args:
            rewards (`torch.Tensor` of shape `(N, F)`): Of all processes.
            group_size (`int`): G.
            examples (`list[dict]`): Rows of this process, one per completion; columns `task` and `interrupted` of
                another meaning are ignored.
            completions (`list`): This process's completions.
            completion_ids (`list[list[int]]`): Their tokens.
            correct (`list[bool]`): Verdicts of all processes.
            seconds (`float`): How long all reward functions took.
        """
        tasks = [example.get("task") for example in examples]
        interrupted = [example.get("interrupted") for example in examples]
        outcome = cls(
            rewards=rewards,
            group_size=group_size,
            tokens=torch.tensor(sum(map(len, completion_ids)), device=rewards.device),
            tasks=gather_object([task if isinstance(task, str) else None for task in tasks]),
            interrupted=gather_object([is_cut for is_cut in interrupted if isinstance(is_cut, bool)]),
            rounds=[rewards],
            correct=list(correct),
            completions=completions,
            ids=completion_ids,
            seconds=seconds,
        )
        outcome.measured = outcome.measurements()
        return outcome

    def measurements(self) -> dict[str, float]:
        """
        Compute the entries in `metrics.jsonl`: by task, the mean reward and the share with the full reward of 1; the
        share of correct completions; the interruptions.
        """
        first = self.rewards[:, 0]
        values = {}
        for task in sorted({name for name in self.tasks if name is not None}):
            rewards = first[[place for place, name in enumerate(self.tasks) if name == task]]
            rewards = rewards[~rewards.isnan()]
            if len(rewards):  # the first reward function may belong to another task
                values[f"reward/{task}"] = rewards.mean().item()
                values[f"pass_rate/{task}"] = (rewards >= 1.0).float().mean().item()
                self.counts[f"reward/{task}"] = len(rewards)
                self.counts[f"pass_rate/{task}"] = len(rewards)
        if self.correct:
            values["gold"] = sum(self.correct) / len(self.correct)
        if self.interrupted:
            values["interrupted_fraction"] = sum(self.interrupted) / len(self.interrupted)
        return values

    def constant_groups(self, weights: torch.Tensor, aggregation: str) -> float | None:
        """
        Return the share of groups whose rewards are all equal, `None` where a group is one completion. TRL's own
        compares standard deviations of the batch, unless `scale_rewards` is `"group"` or `"none"`.
        """
        if self.group_size == 1:
            return None
        groups = groups_without_signal(self.rewards, self.group_size, weights, aggregation)
        return groups.float().mean().item()

    def count_scored(self, names: Sequence[str]) -> None:
        """Count the rows that have a reward, and those that each of the functions gave one."""
        missing = self.rewards.isnan()
        every, *each = torch.cat([missing.all(dim=1, keepdim=True), missing], dim=1).sum(dim=0).tolist()
        total = len(self.rewards)
        self.counts["reward"] = self.counts["reward_std"] = total - every
        for name, number in zip(names, each, strict=True):
            self.counts[f"rewards/{name}/mean"] = self.counts[f"rewards/{name}/std"] = total - number

    def rows(self, process: int, count: int) -> dict[str, torch.Tensor]:
        """
        Return what a batch holds of one process's rows, so that it stays with them when they are shuffled.

        Returns:
            `dict[str, torch.Tensor]`: `rewards` of shape `(count, F)`, and `group` of shape `(count,)`, the number of
                each row's group among those of all processes.
        """
        numbers = torch.arange(len(self.rewards), device=self.rewards.device) // self.group_size
        return {
            "rewards": select_own_rows(self.rewards, process, count),
            "group": select_own_rows(numbers, process, count),
        }

    def unbounded(self) -> torch.Tensor:
        """Find the rows of groups with an infinite reward: bools of shape `(N,)`."""
        rows = self.rewards.isinf().any(dim=1)
        groups = rows.view(-1, self.group_size).any(dim=1)
        return groups.repeat_interleave(self.group_size)


class Rows(list):
    """Holds rows that TRL samples for; the method in which it rewards them leaves their [`Outcome`] here."""

    outcome: Outcome


@dataclass(frozen=True)
class Sampled:
    """
    Holds completions of rows that are looked at, and not trained on: G for each, row by row; N in all.

    Attributes:
        completions (`list`): As reward functions get them: texts, or lists of messages.
        ids (`list[list[int]]`): Their tokens, the end token included.
        cut (`list[bool]`): Whether each was cut at the greatest length instead of ending.
        rewards (`torch.Tensor` of shape `(N, F)`): Of each reward function; NaN where it does not apply.
        total (`torch.Tensor` of shape `(N,)`): Their weighted sum; NaN where none applies.
        reward_seconds (`float`): All reward functions took so long.
        batch (`dict[str, torch.Tensor]`): As a step would train on it, without anchors.
    """

    completions: list
    ids: list[list[int]]
    cut: list[bool]
    rewards: torch.Tensor
    total: torch.Tensor
    reward_seconds: float
    batch: dict[str, torch.Tensor]

    @classmethod
    def of(cls, outcome: Outcome, batch: dict[str, torch.Tensor], weights: torch.Tensor, ends: set[int]) -> "Sampled":
        """
        Take the outcome of a sampling and its batch.

        Args:
            outcome ([`Outcome`]): The outcome.
            batch (`dict[str, torch.Tensor]`): The batch.
            weights (`torch.Tensor` of shape `(F,)`): Of the reward functions.
            ends (`set[int]`): The tokens that end a completion.
        """
        cut = [not tokens or tokens[-1] not in ends for tokens in outcome.ids]
        rewards = outcome.rewards.cpu()
        total = weighted_sum(outcome.rewards, weights).cpu()
        return cls(outcome.completions, outcome.ids, cut, rewards, total, outcome.seconds, batch)


def weighted_sum(rewards: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """
    Sum the rewards of all functions to one reward a completion, `(N,)`; NaN where no function gave one.

    Args:
        rewards (`torch.Tensor` of shape `(N, F)`): NaN where a function does not apply.
        weights (`torch.Tensor` of shape `(F,)`): TRL's `reward_weights`.
    """
    weighted = rewards * weights.to(rewards.device)
    return weighted.nansum(dim=1).masked_fill(rewards.isnan().all(dim=1), math.nan)


def select_own_rows(gathered: torch.Tensor, process: int, count: int) -> torch.Tensor:
    """Return the `count` rows of one process in a tensor gathered from all processes."""
    return gathered[process * count :][:count]


def count_written_by_others(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """
    Count the completion tokens that no model sampled: a tool's, or forced ones.

    Those of completions that `mask_truncated_completions` leaves out are not known any more, and not counted.
    """
    mask = batch["completion_mask"]
    if "tool_mask" not in batch:
        return mask.new_zeros(())
    return (mask * (1 - batch["tool_mask"])).sum()


def keep_groups_together(permutation: torch.Tensor, size: int, rows: int) -> torch.Tensor:
    """
    Reorder a permutation of B rows so that the rows of a group stand together, as far as no row leaves its share.

    So TRL's own permutation decides which rows an update sees, and packing finds each prompt in as few micro-batches
    as that allows.

    Args:
        permutation (`torch.Tensor` of shape `(B,)`): TRL's, of rows of which those of a group are contiguous.
        size (`int`): Completions of a group. If B is no multiple of it, which is a process's part of a batch, parts of
            groups that fit move together.
        rows (`int`): The rows of a share: the first so many rows of the permutation, the next so many, and so on.

    Returns:
        `torch.Tensor` of shape `(B,)`: In each share the groups stand in the order in which it first meets them.
    """
    size = math.gcd(size, len(permutation))
    ordered = []
    for share in permutation.split(rows):
        groups: dict[int, list[int]] = {}
        for row in share.tolist():
            groups.setdefault(row // size, []).append(row)
        for members in groups.values():
            ordered += sorted(members)
    return torch.tensor(ordered)


def set_advantages(
    advantages: torch.Tensor,
    outcome: Outcome,
    weights: torch.Tensor,
    process: int,
    args: "ProRLConfig",
    logged: deque,
    penalties: torch.Tensor | None = None,
) -> None:
    """
    Replace TRL's advantages where the configuration asks for it, and mark those of groups with an infinite reward.

    Args:
        advantages (`torch.Tensor` of shape `(B,)`): Of this process, changed in place.
        outcome ([`~trl_prorl.rollout.Outcome`]): Rewards of all processes.
        weights (`torch.Tensor` of shape `(F,)`): Of the reward functions.
        process (`int`): The index of this process.
        args ([`~trl_prorl.ProRLConfig`]): `advantage_estimator`, `drop_zero_rows`, `multi_objective_aggregation`.
        penalties (`torch.Tensor` of shape `(N,)`, *optional*): Of all processes, to be taken off the rewards.
        logged (`collections.deque`): The advantages in TRL's table of completions, the newest last, replaced too.
    """
    count = len(advantages)
    estimator = args.advantage_estimator
    if estimator is not None:
        rewards = combined_rewards(outcome.rewards, weights, penalties)
        estimates = estimate(rewards, outcome.group_size, estimator)
        advantages.copy_(select_own_rows(estimates, process, count))
        replace_logged(logged, outcome, weights, estimator, rewards, penalties)
    if args.drop_zero_rows and estimator not in UNGROUPED:
        equal = rows_of_equal_groups(outcome, weights, args.multi_objective_aggregation)
        advantages.masked_fill_(select_own_rows(equal, process, count), 0.0)
    # TRL silently zeroes the advantages of a group with an infinite reward; the guard sees NaN.
    advantages.masked_fill_(select_own_rows(outcome.unbounded(), process, count), math.nan)


def combined_rewards(
    rewards: torch.Tensor, weights: torch.Tensor, penalties: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the weighted sum `(N,)` of rewards `(N, F)`, less the penalties `(N,)`."""
    combined = weighted_sum(rewards, weights)
    if penalties is None:
        return combined
    return combined - penalties


def replace_logged(
    logged: deque,
    outcome: Outcome,
    weights: torch.Tensor,
    estimator: str,
    batch: torch.Tensor,
    penalties: torch.Tensor | None,
) -> None:
    """
    Replace the newest advantages in TRL's table of completions. It has the rows of all rounds of dynamic sampling,
    which need not be those of the batch. `batch` are the rewards of the batch, with which an estimator compares.
    """
    of_rounds = torch.cat(outcome.rounds)
    if penalties is not None and len(penalties) != len(of_rounds):
        penalties = None  # these are of the batch alone
    newest = combined_rewards(of_rounds, weights, penalties)[-logged.maxlen :]
    for _ in range(min(len(logged), len(newest))):
        logged.pop()
    logged.extend(estimate(newest, outcome.group_size, estimator, batch).tolist())


def rows_of_equal_groups(outcome: Outcome, weights: torch.Tensor, aggregation: str) -> torch.Tensor:
    """
    Return `(N,)`, whether a row is of a group of equal rewards. Its advantage is 0, which TRL computes only nearly so,
    and `drop_zero_rows` looks for exact zeros. `aggregation` is TRL's `multi_objective_aggregation`.
    """
    groups = groups_without_signal(outcome.rewards, outcome.group_size, weights, aggregation)
    return groups.repeat_interleave(outcome.group_size)


def groups_without_signal(
    rewards: torch.Tensor, group_size: int, weights: torch.Tensor, aggregation: str
) -> torch.Tensor:
    """Find the groups of G rows, rewards `(N, F)`, that are equal as `aggregation` compares them: bools `(N / G,)`."""
    if aggregation == "sum_then_normalize":
        columns = [weighted_sum(rewards, weights)]
    else:  # each is centred by itself
        columns = rewards.unbind(dim=1)
    equal = [all_equal(column.view(-1, group_size)) for column in columns]
    return torch.stack(equal).all(dim=0)


# ---------------------------------------------------------------------------------------------------------------------
# The guard of reward functions: an error names the function and the prompt, and a call has a time limit.


# Not SIGALRM, because reward functions have alarms of their own (math-verify's time limit is one).
SIGNAL = signal.SIGRTMIN + 9
REPEAT_SECONDS = 1.0
ONE_EACH = " Return a list with one number or None per completion."


class DeadlineExceeded(BaseException):
    """Raised when a call exceeds its time limit. Not an `Exception`, so that user code cannot swallow it."""


def call_within(seconds: float | None, function: Callable[[], Any]) -> Any:
    """
    Call a function, and interrupt it when its time is over.

    In the main thread a signal interrupts it, in Python code and in system calls alike; native code that holds the
    interpreter's lock is interrupted when it returns. Other threads get no signals; from there the function runs in a
    thread of its own and is abandoned.

    Args:
        seconds (`float`, *optional*): The limit; `None` means no limit.
        function (`Callable`): Takes no arguments.

    Raises:
        [`DeadlineExceeded`]: The function took longer.
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


def guard_reward(
    function: Callable, name: str, seconds: float | None, nonfinite: str, training: Callable[[], bool] = lambda: True
) -> Callable:
    """
    Wrap a reward function so that it raises [`RewardError`] in place of any other error.

    A reward model is left as it is, see [`settle_models`].

    Args:
        function (`Callable`): The reward function, which may be asynchronous.
        name (`str`): Its name, for messages.
        seconds (`float`, *optional*): The time limit of one batch; `None` means no limit.
        nonfinite (`str`): `"stop"` refuses NaN and infinity. `"skip"` passes both on as infinity, because TRL reads
            NaN as `None`, its sign that a function does not apply to a completion; `None` is always allowed. An
            evaluation has no step to leave out, so such rewards are left out there, as NaN.
        training (`Callable[[], bool]`): Returns whether a call is for training and not for an evaluation.

    Returns:
        `Callable`: The function as TRL calls it.
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
    return guarded


def settle_models(
    functions: Sequence[Callable], names: Sequence[str], rewards: torch.Tensor, nonfinite: str, training: bool
) -> torch.Tensor:
    """
    Treat NaN and infinity of a reward model as [`guard_reward`] treats those of a function.

    A model has no `None`, for which TRL would take its NaN.

    Args:
        functions (`Sequence[Callable]`): Reward functions and models.
        names (`Sequence[str]`): Their names, for messages.
        rewards (`torch.Tensor` of shape `(N, F)`): What they returned, changed in place.
        nonfinite (`str`): As in [`guard_reward`].
        training (`bool`): Whether the rewards are for training and not for an evaluation.

    Returns:
        `torch.Tensor` of shape `(N, F)`: The same rewards.

    Raises:
        [`NonFiniteRewardError`]: With `nonfinite="stop"`, naming the model.
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


def check_scored(reward: float, names: Sequence[str]) -> None:
    """
    Raise an error for a batch of a training in which nothing was scored.

    Args:
        reward (`float`): Its mean over completions; NaN if every function returned `None` for each.
        names (`Sequence[str]`): Of the reward functions.

    Raises:
        [`RewardError`]: Nothing was scored.
    """
    if math.isnan(reward):
        raise RewardError(
            f"reward functions {', '.join(map(repr, names))} returned None for every completion of a batch, so the "
            "batch gives no gradient. Return a number where a function applies, or set nonfinite: skip to skip such "
            "batches."
        )


@dataclass(frozen=True)
class RewardGuard:
    """Calls a reward function and checks what it returns; the attributes are the arguments of [`guard_reward`]."""

    function: Callable
    name: str
    seconds: float | None
    nonfinite: str
    training: Callable[[], bool]

    def call(self, columns: dict[str, Any]) -> list:
        prompts = columns.get("prompts", [])
        try:
            # A generator runs only when it is read.
            rewards = call_within(self.seconds, lambda: read_generator(self.function(**columns)))
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
                rewards = await self.function(**columns)
        except Exception as error:
            if limit.expired():
                raise self._too_late(prompts) from own_traceback(error)
            raise self._failed(error, prompts) from own_traceback(error)  # a time-out of its own, perhaps
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

    def _check_one(self, reward: Any, prompts: list, row: int) -> Any:
        if reward is None:
            return None
        value = as_float(reward)
        if value is None:
            raise RewardError(self._describe(f"returned {reward!r}, which is not a number,", prompts, row))
        if math.isfinite(value):
            return reward
        if self.nonfinite == "stop":
            cure = " Fix it, return None for completions that it cannot score, or set nonfinite: skip."
            raise NonFiniteRewardError(self._describe(f"returned {value}", prompts, row, cure))
        return math.inf if self.training() else math.nan

    def _too_late(self, prompts: list) -> RewardError:
        what = f"did not return within reward_timeout={self.seconds:g} s"
        cure = " Make it faster, or raise reward_timeout (null: no limit)."
        return RewardError(self._describe(what, prompts, self._current_row(), cure))

    def _failed(self, error: Exception, prompts: list) -> RewardError:
        what = f"raised {type(error).__name__}: {error}{locate_error(error, self.function)}"
        return RewardError(self._describe(what, prompts, self._current_row()))

    def _current_row(self) -> int | None:
        """Return the row that the function is processing, if it exposes it."""
        return getattr(self.function, "row", None)

    def _describe(self, what: str, prompts: list, row: int | None = None, cure: str = "") -> str:
        """Write an error line: which function, what it did, for which prompt, and the cure."""
        if not prompts:
            where = ""
        elif row is None:
            where = f" for a batch of {len(prompts)} prompts starting with {quoted(prompts[0])}"
        else:
            where = f" for the prompt {quoted(prompts[row])}"
        return f"reward function {self.name!r} {what}{where}.{cure}"


def own_traceback(error: BaseException) -> BaseException | None:
    """
    Cut the traceback of an error to the part that is a reward function's own.

    Its author looks for these lines, and in a script of theirs Python prints them.

    Returns:
        `BaseException` or `None`: The error; `None` if there is no such part, because the function was never entered
            or went on elsewhere.
    """
    own = error.__traceback__
    while own is not None and own.tb_frame.f_code.co_filename.startswith(CALLERS):
        own = own.tb_next
    return None if own is None else error.with_traceback(own)


def locate_error(error: Exception, function: Callable) -> str:
    """Return where a function raised, or where it is defined if it could not be called: `" (FILE, line N)"`."""
    own = own_traceback(error)
    if own is not None:
        frame = traceback.extract_tb(own.__traceback__)[-1]
        return f" ({frame.filename}, line {frame.lineno})"
    code = getattr(function, "__code__", None)
    return "" if code is None else f" ({code.co_filename}, line {code.co_firstlineno})"


def as_float(reward: Any) -> float | None:
    """
    Convert a number, a NumPy scalar or a tensor of one value to a float.

    `None` for anything else, including a string of digits.
    """
    if isinstance(reward, (str, bytes)):
        return None
    try:
        return float(reward)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def read_generator(rewards: Any) -> Any:
    """Read a generator to its end, and leave anything else as it is."""
    return list(rewards) if hasattr(rewards, "__next__") else rewards


# ---------------------------------------------------------------------------------------------------------------------
# The rows of one evaluation, whatever batches they came in: rewards, lengths, entropies, and their means.


# TRL's losses that are means over the tokens of a batch; the others are means over its completions.
TOKEN_LOSSES = ("bnpo", "dapo", "cispo", "vespo")


def count_rows(dataset: Any, n: int) -> int | None:
    """
    Count the completions of an evaluation set, `n` of each prompt; `None` if it has no length. With several processes
    the last batch is filled with prompts from the set's beginning, which must not count twice.
    """
    return len(dataset) * n if has_length(dataset) else None


class EvaluationRows:
    """Gathers the rows of all processes, in the order of the set."""

    def __init__(self):
        self.begin()

    def begin(self) -> None:
        """Begin an evaluation."""
        self._columns: dict[str, list[torch.Tensor]] = defaultdict(list)
        self._losses: list[float] = []
        self._loss_weights: list[float] = []

    def add(self, **columns: torch.Tensor) -> None:
        """Add columns of a batch, each with the rows of all processes."""
        for name, values in columns.items():
            self._columns[name].append(values.detach().cpu())

    def add_loss(self, loss: float, weight: float) -> None:
        """Add the loss of a batch, a mean over so many rows or tokens."""
        self._losses.append(loss)
        self._loss_weights.append(weight)

    def loss(self) -> float | None:
        """Average the losses; `None` where all batches are alike, so that the plain mean is right."""
        finite = [place for place, loss in enumerate(self._losses) if math.isfinite(loss)]
        weights = [self._loss_weights[place] for place in finite]
        if len(set(weights)) <= 1:
            return None
        return weighted_mean([self._losses[place] for place in finite], weights)

    def metrics(
        self, end: int | None, names: Sequence[str], weights: torch.Tensor, group_size: int, aggregation: str
    ) -> dict[str, float]:
        """
        Compute TRL's metrics of an evaluation over its rows.

        Args:
            end (`int`, *optional*): How many rows count.
            names (`Sequence[str]`): Of the F reward functions.
            weights (`torch.Tensor` of shape `(F,)`): Theirs.
            group_size (`int`): Completions of a prompt.
            aggregation (`str`): TRL's `multi_objective_aggregation`.
        """
        if not self._columns:
            return {}
        columns = {name: torch.cat(values)[:end] for name, values in self._columns.items()}
        rewards = columns["rewards"].float()
        total = weighted_sum(rewards, weights)
        measured = {"reward": total.nanmean(), "reward_std": nanstd(total)}
        for name, column in zip(names, rewards.unbind(dim=1), strict=True):
            measured[f"rewards/{name}/mean"] = column.nanmean()
            measured[f"rewards/{name}/std"] = nanstd(column)
        if group_size > 1:
            constant = groups_without_signal(rewards, group_size, weights, aggregation)
            measured["frac_reward_zero_std"] = constant.float().mean()
        lengths = columns["lengths"].float()
        cut = columns["cut"]
        measured["completions/clipped_ratio"] = cut.float().mean()
        for kind, some in (("", lengths), ("terminated_", lengths[~cut])):
            if len(some):
                measured[f"completions/mean_{kind}length"] = some.mean()
                measured[f"completions/min_{kind}length"] = some.min()
                measured[f"completions/max_{kind}length"] = some.max()
        tokens = columns["tokens"].sum()
        if tokens:
            measured["entropy"] = columns["entropies"].double().sum() / tokens
        return {name: value.item() for name, value in measured.items()}


# ---------------------------------------------------------------------------------------------------------------------
# Which completions are correct, whatever reward they got: `gold` of a generation batch, pass@k of an evaluation.
#
# A reward function has an attribute `batch_verifier`, which is called with the same arguments and returns one bool per
# completion. Recipes have it from their task's `verify`.


ATTRIBUTES = ("batch_verifier", "verifier")  # the second is the earlier name of the first


def find_verifier(functions: Iterable[Any]) -> Callable | None:
    """Return the `batch_verifier` of the first reward function that has one, or `None`."""
    found = (getattr(function, name, None) for function in functions for name in ATTRIBUTES)
    return next((verifier for verifier in found if callable(verifier)), None)


def draw_sizes(n: int) -> list[int]:
    """List the powers of two up to `n`."""
    return [1 << power for power in range(n.bit_length())]


def measure_pass_at_k(correct: Sequence[bool], tasks: Sequence[str | None], n: int) -> dict[str, float]:
    """
    Compute pass@k, a mean over prompts, for k = 1, 2, 4 … `n`; with several tasks, of each one too.

    Args:
        correct (`Sequence[bool]`): The verdict of every completion, prompt by prompt.
        tasks (`Sequence[str | None]`): Its task.
        n (`int`): The completions of a prompt.

    Returns:
        `dict[str, float]`: `pass@K` and `pass@K/TASK`; empty without completions.
    """
    counts = [sum(correct[first : first + n]) for first in range(0, len(correct), n)]
    measured = _mean_pass_at_k(counts, n)
    known = sorted({task for task in tasks if task is not None})
    if len(known) > 1:
        task_of_prompt = tasks[::n]
        for task in known:
            of_task = [count for count, its_task in zip(counts, task_of_prompt, strict=True) if its_task == task]
            measured |= _mean_pass_at_k(of_task, n, suffix=f"/{task}")
    return measured


def _mean_pass_at_k(counts: Sequence[int], n: int, suffix: str = "") -> dict[str, float]:
    """Return the means over prompts with so many right ones of `n`, by `pass@K` and a suffix; nothing of none."""
    if not counts:
        return {}
    return {f"pass@{k}{suffix}": sum(pass_at_k(n, count, k) for count in counts) / len(counts) for k in draw_sizes(n)}


class Verdicts:
    """
    Gathers the verdicts of one evaluation. Without a `batch_verifier` there are none.

    Args:
        functions (`Iterable`): The reward functions.
        n (`int`): Completions of a prompt.
        seconds (`float`, *optional*): The verifier's time limit for one batch.
    """

    def __init__(self, functions: Iterable[Any], n: int, seconds: float | None):
        self.n = n
        verifier = find_verifier(functions)
        self.name = getattr(verifier, "__qualname__", "batch_verifier")
        self._verify = None if verifier is None else guard_reward(verifier, self.name, seconds, "stop")
        self.begin()

    def begin(self) -> None:
        """Begin an evaluation."""
        self._correct: list[bool] = []
        self._tasks: list[str | None] = []

    def judge(self, examples: list[Mapping], prompts: list, completions: list) -> list[bool]:
        """
        Judge whether each completion of a batch is correct.

        Args:
            examples (`list[Mapping]`): This process's rows, one per completion.
            prompts (`list`): Their prompts.
            completions (`list`): Their completions.

        Returns:
            `list[bool]`: Verdicts of all processes; empty without a `batch_verifier`.

        Raises:
            [`RewardError`]: The verifier raised, took too long, or returned what is neither true nor false.
        """
        if self._verify is None:
            return []
        keys = [key for key in examples[0] if key not in ("prompt", "completion", "completion_ids")]
        columns = {key: [example[key] for example in examples] for key in keys}
        verdicts = self._verify(prompts=prompts, completions=completions, **columns)
        return gather_object([as_verdict(verdict, self.name) for verdict in verdicts])

    def add(self, correct: list[bool], tasks: list[str | None]) -> None:
        """Add verdicts and tasks of a batch of the evaluation, one per completion."""
        self._correct += correct
        self._tasks += tasks

    def measure_set(self, rows: Any, prefix: str) -> dict[str, float]:
        """
        Compute the [`measure_pass_at_k`] of an evaluation set, by names that begin with `prefix`.

        A set without a length is taken as it came.
        """
        end = count_rows(rows, self.n)
        measured = measure_pass_at_k(self._correct[:end], self._tasks[:end], self.n)
        return {f"{prefix}_{name}": value for name, value in measured.items()}
