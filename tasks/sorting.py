"""Sort digits, with a choice of graded rewards."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

from .generated import GeneratedTask


# Without leading zeros, so that two numbers are equal exactly if their texts are.
INTEGER = re.compile("0|-?[1-9][0-9]*")


def exact_reward(given: Sequence[str], required: Sequence[str]) -> float:
    """1.0 if the two lists are the same, else 0.0."""
    return float(given == required)


def distance_reward(given: Sequence[str], required: Sequence[str]) -> float:
    """
    How near each number is to the one that belongs in its place.

    With the required digits b_i and the largest error m_i = max(b_i, 9 - b_i) that a digit can have in place i, it is
    1 - sum_i min(|a_i - b_i|, m_i) / sum_i m_i. It is 0 if the count is wrong or something is not an integer written
    without leading zeros.
    """
    if len(given) != len(required) or not all(INTEGER.fullmatch(text) for text in given):
        return 0.0
    # float, because int refuses texts of some thousand digits; those become inf, which the minimum cuts.
    numbers = [float(text) for text in given]
    targets = [float(text) for text in required]
    largest = [max(target, 9 - target) for target in targets]
    errors = [min(abs(a - b), most) for a, b, most in zip(numbers, targets, largest, strict=True)]
    return 1.0 - sum(errors) / sum(largest)


def longest_common_subsequence(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common subsequence; time O(len(a) len(b)), memory O(len(b))."""
    lengths = [0] * (len(b) + 1)
    for x in a:
        diagonal = 0
        for j, y in enumerate(b, start=1):
            above = lengths[j]
            lengths[j] = diagonal + 1 if x == y else max(above, lengths[j - 1])
            diagonal = above
    return lengths[-1]


def inclusion_order_reward(given: Sequence[str], required: Sequence[str]) -> float:
    """
    Half for having the required numbers, half for having them in order.

    With N = max(len(given), len(required)), it is (|given ∩ required| + LCS(given, required)) / (2 N), where the
    intersection is that of multisets and LCS the length of the longest common subsequence. The larger of the two
    lengths in the denominator is there so that padding does not pay.
    """
    included = (Counter(given) & Counter(required)).total()
    ordered = longest_common_subsequence(given, required)
    return (included + ordered) / (2 * max(len(given), len(required)))


REWARDS = {"exact": exact_reward, "distance": distance_reward, "inclusion_order": inclusion_order_reward}


class Sorting(GeneratedTask):
    """
    Sort digits in ascending order: `sort 7 3 9 1` -> `1 3 7 9`.

    Level L, 1 to 8, has L + 3 digits, repetitions included. Every reward lies in [0, 1] and is 1.0 exactly for a
    correct answer.

    Args:
        level (`int`, *optional*, defaults to `3`): difficulty, from 1 to 8.
        reward (`str`, *optional*, defaults to `"exact"`): `"exact"` (correct or not), `"distance"` (see
            [`distance_reward`]) or `"inclusion_order"` (see [`inclusion_order_reward`]).

    Raises:
        `ValueError`: if the level or the reward is not one of these.
    """

    name = "sorting"

    def __init__(self, level: int = 3, reward: str = "exact"):
        super().__init__(level)
        if not isinstance(reward, str) or reward not in REWARDS:
            raise ValueError(f"reward={reward!r}: {self.name} has the rewards {', '.join(REWARDS)}")
        self._reward = REWARDS[reward]

    def sample(self, rng: Random) -> tuple[str, str]:
        digits = rng.choices("0123456789", k=self.level + 3)
        return f"sort {' '.join(digits)}", " ".join(sorted(digits))

    def verify(self, completion: str, row: Mapping) -> bool:
        return completion.split() == row["answer"].split()

    def reward(self, completion: str, row: Mapping) -> float:
        return self._reward(completion.split(), row["answer"].split())
