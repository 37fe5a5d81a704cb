"""
pass@k of an evaluation during training: which completions are correct, whatever reward they got.

A reward function says so by an attribute `verifier`, which is called as the function itself and returns a bool for
each completion. Recipes have it from their task's `verify`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from accelerate.utils import gather_object
from trl.trainer.utils import is_async_callable

from ..errors import RewardError
from .rewards import watched


def verifier_of(functions: Iterable[Any]) -> Callable | None:
    """The verifier of the first reward function that has one."""
    found = (getattr(function, "verifier", None) for function in functions)
    return next((verifier for verifier in found if callable(verifier)), None)


def pass_at_k(n: int, c: int, k: int) -> float:
    """
    Unbiased estimate of pass@k for one prompt, 1 − C(n−c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374).

    Args:
        n (`int`), c (`int`):
            Samples of the prompt, and the correct ones among them.
        k (`int`):
            Size of the draw, from 1 to `n`.
    """
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def draw_sizes(n: int) -> list[int]:
    """The powers of two up to `n`."""
    return [1 << power for power in range(n.bit_length())]


def names(n: int, tasks: Iterable[str]) -> list[str]:
    """The names of all measurements of an evaluation with `n` completions a prompt."""
    several = sorted(tasks) if len(set(tasks)) > 1 else []
    return [f"pass@{k}{suffix}" for suffix in ("", *(f"/{task}" for task in several)) for k in draw_sizes(n)]


def measurements(correct: Sequence[bool], tasks: Sequence[str | None], n: int) -> dict[str, float]:
    """
    pass@k, a mean over prompts, for k = 1, 2, 4 … `n`; with several tasks, of each one too.

    Args:
        correct (`Sequence[bool]`), tasks (`Sequence[str | None]`):
            Verdict and task of every completion, prompt by prompt.
        n (`int`):
            Completions of a prompt.

    Returns:
        `dict[str, float]`: `pass@K` and `pass@K/TASK`; empty without completions.
    """
    counts = [sum(correct[first : first + n]) for first in range(0, len(correct), n)]
    parts = {"": counts}
    if len(known := sorted({task for task in tasks if task is not None})) > 1:
        parts |= {f"/{task}": [c for c, of in zip(counts, tasks[::n], strict=True) if of == task] for task in known}
    return {
        f"pass@{k}{suffix}": sum(pass_at_k(n, c, k) for c in part) / len(part)
        for suffix, part in parts.items()
        if part
        for k in draw_sizes(n)
    }


class Verdicts:
    """
    The verdicts of one evaluation.

    Args:
        verifier (`Callable`):
            See [`verifier_of`].
        name (`str`):
            Its name in errors.
        n (`int`):
            Completions of a prompt in an evaluation.
        seconds (`float` or `None`):
            Its time limit for one batch.
    """

    def __init__(self, verifier: Callable, name: str, n: int, seconds: float | None):
        self.name, self.n = name, n
        self._verify = watched(verifier, name, seconds, "stop")
        self.begin()

    def begin(self) -> None:
        """An evaluation begins."""
        self._correct: list[bool] = []
        self._tasks: list[str | None] = []

    def add(self, examples: list[Mapping], prompts: list, completions: list, tasks: list[str | None]) -> None:
        """
        Judge a batch.

        Args:
            examples (`list[Mapping]`), prompts (`list`), completions (`list`):
                This process's rows, one a completion.
            tasks (`list[str | None]`):
                Those of all processes.

        Raises:
            [`RewardError`]: the verifier raised, took too long, or returned what is neither true nor false.
        """
        columns = {
            key: [example[key] for example in examples]
            for key in examples[0]
            if key not in ("prompt", "completion", "completion_ids")
        }
        verdicts = self._verify(prompts=prompts, completions=completions, **columns)
        for verdict in verdicts:
            if verdict not in (0, 1):
                raise RewardError(f"{self.name!r} returned {verdict!r}, which is neither true nor false.")
        self._correct += gather_object([bool(verdict) for verdict in verdicts])
        self._tasks += tasks

    def measurements(self, prompts: int | None) -> dict[str, float]:
        """
        [`measurements`] of the evaluation.

        Args:
            prompts (`int`, *optional*):
                Prompts of the evaluation set, if it says. With several processes the last batch is filled with
                prompts from the beginning of the set, which do not count twice.
        """
        end = None if prompts is None else prompts * self.n
        return measurements(self._correct[:end], self._tasks[:end], self.n)


def check_watched(asked: Mapping[str, str], functions: Iterable[Any], n: int, sets: Mapping[str, Any]) -> None:
    """
    Refuse keys that name a pass@k which no evaluation will measure.

    Args:
        asked (`Mapping[str, str]`):
            Names of metrics by the key that has them.
        functions (`Iterable`):
            The reward functions.
        n (`int`):
            Completions of a prompt in an evaluation.
        sets (`Mapping[str, Any]`):
            The names of the evaluation sets, and the tasks in each; `""` is the name of an only one, and the tasks are
            `None` where they are not known.

    Raises:
        `ValueError`: naming the key, its value and what is measured.
    """
    verifier = verifier_of(functions)
    if verifier is not None and is_async_callable(verifier):
        raise ValueError(
            f"the verifier {verifier.__qualname__!r} of a reward function is asynchronous: make it plain."
        )
    for key, metric in asked.items():
        if "pass@" not in metric:
            continue
        if verifier is None:
            raise ValueError(
                f"{key}={metric!r} needs to know which completions are correct, and no reward function has a "
                "verifier. Set it to eval_reward, or give the reward function one: function.verifier = verify, called as the "
                "function itself, a bool for each completion."
            )
        known = []
        for name, tasks in sets.items():
            prefix = f"eval_{name}_" if name else "eval_"
            known += [prefix + each for each in names(n, tasks or ())]
            if tasks is None and metric.partition("/")[0] in known:
                known.append(metric)
        if metric not in known and f"eval_{metric}" not in known:
            raise ValueError(
                f"{key}={metric!r} is not measured: with {n} completions a prompt (num_generations_eval, else "
                f"num_generations) an evaluation has {', '.join(known)}. Set it to one of them."
            )
