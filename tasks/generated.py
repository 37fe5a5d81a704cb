"""Tasks with generated questions, drawn from hashed seeds."""

from abc import abstractmethod
from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING

from trl_prorl.tasks.base import (
    Task,
    build_dataset,
    check_integer,
    check_request,
    content_split,
    stable_hash,
)


if TYPE_CHECKING:
    from datasets import Dataset


MAX_LEVEL = 8
# About one attempt in ten hits the rarest split, so after this many misses no new question is left.
MAX_MISSES = 1000


class GeneratedTask(Task):
    """
    A task that draws its questions from a random generator.

    Args:
        level (`int`, *optional*, defaults to `3`): difficulty, from 1 to 8; the task's docstring describes the levels.

    Raises:
        `ValueError`: If the level is not an integer from 1 to 8.
    """

    def __init__(self, level: int = 3):
        check_integer("level", level, 1, MAX_LEVEL)
        self.level = level

    @abstractmethod
    def sample(self, rng: Random) -> tuple[str, str] | tuple[str, str, dict]:
        """Draw one question: its prompt as text, the reference answer and, optionally, a dict of further columns."""

    def content(self, prompt: str) -> str:
        """
        Return the part of a prompt that identifies the question. It decides the split, and is unique among the drawn
        questions.
        """
        return prompt

    def rows(self, split: str, n: int, seed: int = 0) -> "Dataset":
        """See [`Task.rows`]. `n=None` raises an error, because the number of generated questions is unlimited."""
        check_request(split, n, seed)
        if n is None:
            raise ValueError(f"n=None: the task {self.name} generates its questions. Set n to a number")
        drawn: dict[str, tuple] = {}
        while len(drawn) < n:
            question = self._draw(split, n, seed, drawn)
            drawn[self.content(question[0])] = question
        return build_dataset(self.name, self.level, *zip(*drawn.values(), strict=True))

    def verify(self, completion: str, row: Mapping) -> bool:
        return self.answer_of(completion, row) == row["answer"]

    def _draw(self, split: str, n: int, seed: int, seen: Mapping[str, tuple]) -> tuple:
        """Return the next question of the split that is not in `seen`, as [`GeneratedTask.sample`] returned it."""
        for attempt in range(MAX_MISSES):
            # Hash every coordinate: adding seed and index would make the streams of two seeds overlap.
            rng = Random(stable_hash(self.name, self.level, split, seed, len(seen), attempt))
            question = self.sample(rng)
            content = self.content(question[0])
            if content not in seen and content_split(self.name, content) == split:
                return question
        raise ValueError(
            f"n={n}: only {len(seen)} different {split} questions of {self.name} exist at level {self.level}. "
            "Use fewer rows or a higher level"
        )
