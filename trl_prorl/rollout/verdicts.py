"""
Which completions are correct, whatever reward they got: `gold` of a generation batch, pass@k of an evaluation.

A reward function has an attribute `batch_verifier`, which is called with the same arguments and returns one bool per
completion. Recipes have it from their task's `verify`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from accelerate.utils import gather_object

from ..pass_at_k import as_verdict, pass_at_k
from .evaluation_rows import count_rows
from .rewards import guard_reward


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
