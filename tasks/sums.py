"""Chains of additions, solved step by step: grade-school arithmetic for the smallest models."""

from collections.abc import Mapping
from random import Random

from trl_prorl.tasks.base import check_choice
from trl_prorl.tasks.generated import GeneratedTask
from trl_prorl.tasks.gsm8k import MarkedNumber, marked_answers


MARK = "####"
REWARDS = ("exact", "steps")


def working(terms: list[int]) -> str:
    """Return the additions in order: `17+48=65 65+5=70` for 17, 48 and 5."""
    steps = []
    total = terms[0]
    for term in terms[1:]:
        steps.append(f"{total}+{term}={total + term}")
        total += term
    return " ".join(steps)


class Sums(MarkedNumber, GeneratedTask):
    """
    Add numbers step by step, and mark the sum: `add 17 48 5` -> `17+48=65 65+5=70 #### 70`.

    Level L, 1 to 8, has 2 to L + 1 numbers, every count equally likely. A quarter of the numbers have two digits, all
    others one. A completion is correct if it has the sum after `####`, as in [`~trl_prorl.tasks.gsm8k.GSM8K`]. The
    additions are not required.

    Args:
        level (`int`, *optional*, defaults to `3`): difficulty, from 1 to 8.
        reward (`str`, *optional*, defaults to `"exact"`): `"exact"` is 1 for a correct answer and 0 for any other.
            `"steps"` also grades wrong answers: with n additions to do, a marked number is worth 1/(n+2), and so is
            each addition in its correct position before the mark.

    Raises:
        `ValueError`: If the level or the reward is not one of these.
    """

    name = "sums"

    def __init__(self, level: int = 3, reward: str = "exact"):
        super().__init__(level)
        check_choice("reward", reward, REWARDS)
        self._reward = reward

    def sample(self, rng: Random) -> tuple[str, str, dict]:
        count = rng.randint(2, self.level + 1)
        terms = []
        for _ in range(count):
            has_two_digits = rng.randrange(4) == 0
            terms.append(rng.randint(10, 99) if has_two_digits else rng.randint(1, 9))
        question = f"add {' '.join(map(str, terms))}"
        return question, str(sum(terms)), {"working": working(terms)}

    def reward(self, completion: str, row: Mapping) -> float:
        if self._reward == "exact" or self.verify(completion, row):
            return super().reward(completion, row)
        required = row["working"].split()
        given = completion.partition(MARK)[0].split()
        has_mark = len(marked_answers(completion)) == 1
        points = sum(a == b for a, b in zip(required, given, strict=False)) + has_mark
        return points / (len(required) + 2)

    def gold(self, row: Mapping) -> str:
        return f"{row['working']} {MARK} {row['answer']}"
