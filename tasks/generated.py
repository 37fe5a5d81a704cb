"""Tasks whose questions are generated: an endless supply, drawn by hashed seeds."""

from abc import abstractmethod
from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING

from trl_prorl.tasks.base import Task, build_dataset, check_integer, check_request, content_split, stable_hash


if TYPE_CHECKING:
    from datasets import Dataset


MAX_LEVEL = 8
# One attempt in ten finds a new question of the rarest split, so this many misses mean that none is left.
MAX_MISSES = 1000


class GeneratedTask(Task):
    """
    A task that draws its questions from a random generator.

    Args:
        level (`int`, *optional*, defaults to `3`): difficulty, from 1 to 8; the task's docstring says what it sets.

    Raises:
        `ValueError`: If the level is not an integer from 1 to 8.
    """

    def __init__(self, level: int = 3):
        self.level = self.checked_level(level)

    def checked_level(self, level: object) -> int:
        check_integer("level", level)
        if not 1 <= level <= MAX_LEVEL:
            raise ValueError(f"level={level}: {self.name} has the levels 1 to {MAX_LEVEL}")
        return level

    @abstractmethod
    def sample(self, rng: Random) -> tuple[str, str] | tuple[str, str, dict]:
        """Draw one question; return the text of its prompt, its answer and, if the task has any, further columns."""

    def content(self, prompt: str) -> str:
        """
        Return the part of a prompt that identifies the question: it decides the split, and no two drawn questions
        share it.
        """
        return prompt

    def rows(self, split: str, n: int, seed: int = 0) -> "Dataset":
        """See [`Task.rows`]; `n=None` is refused, because generated questions have no end."""
        check_request(split, n, seed)
        if n is None:
            raise ValueError(f"n=None: {self.name} generates its questions, so say how many")
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
            # A hash of every coordinate, rather than the sum of seed and index, keeps the streams of two seeds apart.
            rng = Random(stable_hash(self.name, self.level, split, seed, len(seen), attempt))
            question = self.sample(rng)
            content = self.content(question[0])
            if content not in seen and content_split(self.name, content) == split:
                return question
        raise ValueError(
            f"n={n}: only {len(seen)} different {split} questions of {self.name} were found at level {self.level}; "
            "ask for fewer rows or for a higher level"
        )
