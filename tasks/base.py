"""The interface of a task, and how questions are split by content."""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from datasets import Dataset


SPLITS = ("train", "validation", "test")
NUM_BUCKETS = 10
TEST_BUCKET = 0
VALIDATION_BUCKET = 1


def stable_hash(*parts: object) -> int:
    """
    Return a 64-bit hash of the parts that is the same in every process and on every machine. Python's own `hash` is
    salted per process, so it is unsuitable for splits and seeds.
    """
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def content_split(task: str, question: str) -> str:
    """
    Return the split of a question: 10 % of all questions are test, 10 % validation and 80 % train. It depends only on
    the content, not on seed or level, so a question is always in the same split.
    """
    bucket = stable_hash(task, question) % NUM_BUCKETS
    return {TEST_BUCKET: "test", VALIDATION_BUCKET: "validation"}.get(bucket, "train")


def check_integer(name: str, value: object, least: float = -math.inf, most: float = math.inf) -> None:
    """Raise `ValueError` unless `value` is an integer (a bool is not) from `least` to `most`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name}={value!r} must be an integer")
    if not least <= value <= most:
        bounds = f"from {least} to {most}" if most < math.inf else f"at least {least}"
        raise ValueError(f"{name}={value} must be {bounds}")


def check_request(split: object, n: object, seed: object) -> None:
    """
    Check the arguments of [`Task.rows`].

    Raises:
        `ValueError`: If the split is unknown, `n` is neither `None` nor an integer >= 1, or `seed` is not an integer.
    """
    check_choice("split", split, SPLITS)
    if n is not None:
        check_integer("n", n, least=1)
    check_integer("seed", seed)


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise `ValueError` unless `value` is one of the choices."""
    if value not in tuple(choices):
        raise ValueError(f"{name}={value!r} must be one of {', '.join(choices)}")


def check_dataset(task: "Task", rows: object) -> "Dataset":
    """
    Return the result of [`Task.rows`] unchanged, after checking it.

    Raises:
        `ValueError`: If it is not a `datasets.Dataset` with a column `prompt`.
    """
    from datasets import Dataset

    owner = type(task).__qualname__
    if not isinstance(rows, Dataset):
        raise ValueError(
            f"{owner}.rows returned a {type(rows).__name__}. Return a datasets.Dataset: Dataset.from_list(rows)"
        )
    if "prompt" not in rows.column_names:
        raise ValueError(f"{owner}.rows returned a dataset without a column 'prompt'. Columns: {rows.column_names}")
    return rows


def build_dataset(name: str, level: int, prompts: Sequence[str], answers: Sequence[str], columns=()) -> "Dataset":
    """
    Return the rows of a task as a dataset with the columns `prompt` (one user message), `answer`, `task` and `level`.
    `columns` contains the task's further columns, one dictionary per row, all with the same keys.
    """
    from datasets import Dataset  # slow to import, and not needed to list tasks

    data = {
        "prompt": [[{"role": "user", "content": prompt}] for prompt in prompts],
        "answer": list(answers),
        "task": [name] * len(prompts),
        "level": [level] * len(prompts),
    }
    for key in columns[0] if columns else ():
        data[key] = [row[key] for row in columns]
    return Dataset.from_dict(data)


class Task(ABC):
    """
    Base class of tasks: questions with answers that can be verified. A subclass implements `rows` and `verify`;
    `reward` is 1.0 for a correct completion and 0.0 for any other, unless the subclass grades.

    Attributes:
        name (`str`): Name of the task in the registry.
        level (`int`): Difficulty, from 1.

    Example:

    ```python
    >>> from trl_prorl.tasks import get_task

    >>> task = get_task("reverse_digits", level=3)
    >>> row = task.rows("test", 1)[0]
    >>> answer = row["prompt"][0]["content"].split()[-1][::-1]
    >>> task.verify(answer, row), task.reward("no idea", row)
    (True, 0.0)
    ```
    """

    name: str
    level: int

    @abstractmethod
    def rows(self, split: str, n: int | None, seed: int = 0) -> "Dataset":
        """
        Return questions of one split. The same arguments always give the same rows, no question occurs twice, and the
        splits share no question, for any seed.

        Args:
            split (`str`): `"train"`, `"validation"` or `"test"`.
            n (`int` or `None`): Number of rows; `None` means all rows of a finite data set.
            seed (`int`, *optional*, defaults to `0`): Selects the rows and their order.

        Returns:
            `datasets.Dataset`: with the columns `prompt` (list of chat messages), `answer` (`str`), `task` (`str`),
                `level` (`int`) and the task's further columns.

        Raises:
            `ValueError`: An argument is wrong, or the split has fewer than `n` questions.
        """

    def answer_of(self, completion: str, row: Mapping) -> str | None:
        """
        Return the answer in a completion, correct or wrong, normalised so that equal answers are equal texts, or
        `None` if there is no answer. By default the complete text is the answer. Must not raise on any text.
        """
        return completion.strip() or None

    @abstractmethod
    def verify(self, completion: str, row: Mapping) -> bool:
        """Return whether the completion (plain text) answers the row correctly. Must not raise on any text."""

    def reward(self, completion: str, row: Mapping) -> float:
        """
        Return the reward of the completion, in [0, 1]: by default 1.0 if it is correct, else 0.0. Must not raise on
        any text.
        """
        return float(self.verify(completion, row))

    def verify_many(self, completions: Sequence[str], rows: Sequence[Mapping]) -> list[bool]:
        """Call `verify` for each completion and its row; a subclass may do so in parallel."""
        return [self.verify(completion, row) for completion, row in zip(completions, rows, strict=True)]

    def reward_many(self, completions: Sequence[str], rows: Sequence[Mapping]) -> list[float]:
        """Call `reward` for each completion and its row; a subclass may do so in parallel."""
        return [self.reward(completion, row) for completion, row in zip(completions, rows, strict=True)]

    def has_answer(self, completion: str, row: Mapping) -> bool:
        """Return whether the completion contains an answer, correct or wrong."""
        return self.answer_of(completion, row) is not None

    def gold(self, row: Mapping) -> str:
        """Return a reference answer: a completion that `verify` accepts."""
        return row["answer"]
