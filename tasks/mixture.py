"""Several tasks in one run."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trl_prorl.tasks.base import Task, check_request
from trl_prorl.tasks.registry import get_task


if TYPE_CHECKING:
    from datasets import Dataset


def shares(weights: Sequence[float], n: int) -> list[int]:
    """
    Assign `n` places to members, so that every prefix matches the weights as closely as possible. Each place goes to
    the member that is furthest below its share; the first one in a tie.
    """
    total = sum(weights)
    counts = [0] * len(weights)
    places = []
    for place in range(1, n + 1):
        behind = [place * weight / total - count for weight, count in zip(weights, counts, strict=True)]
        member = max(range(len(weights)), key=lambda i: behind[i])
        counts[member] += 1
        places.append(member)
    return places


class Mixture(Task):
    """
    Several tasks in given proportions; every row belongs to one task, which verifies and rewards it.

    The column `task` contains the name of the member. Columns that a member does not have are `None` in its rows.

    Args:
        tasks (`dict`): name -> weight, or name -> options of the task and `weight`. With the option `task` you choose
            the name, so a task can occur twice:
            `{"gsm8k": 0.5, "easy": {"task": "code", "level": 1, "weight": 0.2}}`.

    Raises:
        `ValueError`: If `tasks` is not such a mapping, or a task cannot be created.
    """

    name = "mixture"
    level = 0

    def __init__(self, tasks: dict | None = None):
        if not isinstance(tasks, Mapping) or not tasks:
            raise ValueError(f"tasks={tasks!r} must map task names to weights, as in {{gsm8k: 0.5, code: 0.3}}")
        self.weights: dict[str, float] = {}
        self.members: dict[str, Task] = {}
        for name, member in tasks.items():
            options = dict(member) if isinstance(member, Mapping) else {"weight": member}
            weight = options.pop("weight", None)
            if type(weight) not in (int, float) or not 0 < weight < float("inf"):
                raise ValueError(f"tasks: the weight of {name!r} must be a number above 0, not {weight!r}")
            kind = options.pop("task", name)
            try:
                task = get_task(kind, **options)
            except ValueError as error:
                raise ValueError(f"tasks, {name!r}: {error}") from error
            if isinstance(task, Mixture):
                raise ValueError(f"tasks: {name!r} is a mixture itself. List its members instead")
            self.weights[str(name)] = weight
            self.members[str(name)] = task

    def rows(self, split: str, n: int | None, seed: int = 0) -> "Dataset":
        """See [`Task.rows`]. `n=None`, and a member with a share below one row, raise an error."""
        from datasets import Dataset  # slow to import, and not needed to list tasks

        check_request(split, n, seed)
        if n is None:
            raise ValueError("n=None: a mixture is unlimited. Set the number of rows (train_rows)")
        places = shares(list(self.weights.values()), n)
        parts = []
        for position, (name, task) in enumerate(self.members.items()):
            count = places.count(position)
            if not count:
                raise ValueError(
                    f"n={n}: the weight {self.weights[name]:g} of {name!r} gives it no row. Use more rows"
                )
            parts.append(iter(task.rows(split, count, seed)))
        names = list(self.members)
        rows = [{**next(parts[place]), "task": names[place]} for place in places]
        columns = list(dict.fromkeys(column for row in rows for column in row))
        return Dataset.from_dict({column: [row.get(column) for row in rows] for column in columns})

    def answer_of(self, completion: str, row: Mapping) -> str | None:
        return self.members[row["task"]].answer_of(completion, row)

    def has_answer(self, completion: str, row: Mapping) -> bool:
        return self.members[row["task"]].has_answer(completion, row)

    def verify(self, completion: str, row: Mapping) -> bool:
        return self.members[row["task"]].verify(completion, row)

    def reward(self, completion: str, row: Mapping) -> float:
        return self.members[row["task"]].reward(completion, row)

    def gold(self, row: Mapping) -> str:
        return self.members[row["task"]].gold(row)

    def verify_many(self, completions: Sequence[str], rows: Sequence[Mapping]) -> list[bool]:
        return self._by_member("verify_many", completions, rows)

    def reward_many(self, completions: Sequence[str], rows: Sequence[Mapping]) -> list[float]:
        return self._by_member("reward_many", completions, rows)

    def _by_member(self, method: str, completions: Sequence[str], rows: Sequence[Mapping]) -> list:
        """Call the method of every member with its rows; return the results in the original order."""
        results: list = [None] * len(rows)
        for name, task in self.members.items():
            places = [i for i, row in enumerate(rows) if row["task"] == name]
            answers = getattr(task, method)([completions[i] for i in places], [rows[i] for i in places])
            for place, answer in zip(places, answers, strict=True):
                results[place] = answer
        return results
