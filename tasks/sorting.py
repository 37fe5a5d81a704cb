"""Sort digits, with a choice of graded rewards."""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import pairwise
from random import Random

from trl_prorl.tasks.base import check_choice
from trl_prorl.tasks.generated import GeneratedTask


# No leading zeros: two numbers are equal exactly if their texts are equal.
INTEGER = re.compile("0|-?[1-9][0-9]*")


def exact_reward(given: Sequence[str], required: Sequence[str]) -> float:
    """Return 1.0 if the two lists are the same, else 0.0."""
    return float(given == required)


def are_as_many_numbers(given: Sequence[str], required: Sequence[str]) -> bool:
    """Return whether an answer has the required number of words, each an integer without leading zeros."""
    return len(given) == len(required) and all(INTEGER.fullmatch(text) for text in given)


def distance_reward(given: Sequence[str], required: Sequence[str]) -> float:
    """
    Return the share of positions with the required number: 1/4 for `7 2 2 5` if `0 1 2 3` is required. It is 0 if the
    count is wrong or a word is not an integer without leading zeros.
    """
    if not are_as_many_numbers(given, required):
        return 0.0
    return sum(a == b for a, b in zip(given, required, strict=True)) / len(required)


def inclusion_ordering_reward(given: Sequence[str], required: Sequence[str]) -> float:
    """
    Give one point for each number of the question that occurs in the answer, and one for each adjacent pair of the
    answer in ascending order (ties included), divided by the 2n - 1 points possible with n numbers.

    For the question `3 1 0 2`, the answer `7 2 2 5` contains only the 2, and the ordered pairs 2 2 and 2 5: 3/7. The
    answer `0 3 1 2` contains all four numbers, and the ordered pairs 0 3 and 1 2: 6/7. It is 0 if the count is wrong
    or a word is not an integer without leading zeros. The reward ignores how often a number occurs. If digits repeat,
    it *gives some wrong answers full reward*, such as `1 2 2` for the question `1 1 2`.
    """
    if not are_as_many_numbers(given, required):
        return 0.0
    # Decimal, because int() fails on texts of several thousand digits.
    numbers = [Decimal(text) for text in given]
    included = sum(number in given for number in required)
    in_order = sum(first <= second for first, second in pairwise(numbers))
    return (included + in_order) / (2 * len(required) - 1)


REWARDS = {
    "exact": exact_reward,
    "distance": distance_reward,
    "inclusion_ordering": inclusion_ordering_reward,
}


class Sorting(GeneratedTask):
    """
    Sort digits in ascending order: `sort 7 3 9 1` -> `1 3 7 9`.

    Level L, 1 to 8, has L + 3 digits, which may repeat. Every reward is in [0, 1] and is 1.0 for a correct answer.
    Only `"inclusion_ordering"` also gives some wrong answers 1.0.

    Args:
        level (`int`, *optional*, defaults to `3`): difficulty, from 1 to 8.
        reward (`str`, *optional*, defaults to `"exact"`):

            | | 1 point for |
            |---|---|
            | `"exact"` | the correct answer |
            | `"distance"` | each position that matches: [`distance_reward`] |
            | `"inclusion_ordering"` | each number included, each ordered pair: [`inclusion_ordering_reward`] |

    Raises:
        `ValueError`: If the level or the reward is not one of these.
    """

    name = "sorting"

    def __init__(self, level: int = 3, reward: str = "exact"):
        super().__init__(level)
        check_choice("reward", reward, REWARDS)
        self._reward = REWARDS[reward]

    def sample(self, rng: Random) -> tuple[str, str]:
        digits = rng.choices("0123456789", k=self.level + 3)
        return f"sort {' '.join(digits)}", " ".join(sorted(digits))

    def answer_of(self, completion: str, row: Mapping) -> str | None:
        return " ".join(completion.split()) or None

    def reward(self, completion: str, row: Mapping) -> float:
        return self._reward(completion.split(), row["answer"].split())
