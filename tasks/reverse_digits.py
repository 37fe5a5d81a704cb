"""Reverse a string of digits."""

from collections.abc import Mapping
from random import Random

from trl_prorl.tasks.base import check_choice, check_integer
from trl_prorl.tasks.generated import GeneratedTask


REWARDS = ("exact", "ends")


class ReverseDigits(GeneratedTask):
    """
    Write a string of digits backwards: `reverse 12345` -> `54321`.

    Level L, 1 to 8, has strings of 3 to L + 5 digits, every length equally likely, leading zeros included.

    Args:
        level (`int`, *optional*, defaults to `3`): difficulty, from 1 to 8.
        reward (`str`, *optional*, defaults to `"exact"`): `"exact"` rewards the correct answer. `"ends"` only checks
            the number of digits and the first and last ones, so it *gives wrong answers full reward*, such as `54021`.
        first, last (`int`, *optional*, defaults to `1`): how many digits at each end `"ends"` checks, 0 or more. If a
            string is not longer than both together, all its digits are checked.

    Raises:
        `ValueError`: If an argument is invalid.
    """

    name = "reverse_digits"

    def __init__(self, level: int = 3, reward: str = "exact", first: int = 1, last: int = 1):
        super().__init__(level)
        check_choice("reward", reward, REWARDS)
        for name, count in (("first", first), ("last", last)):
            check_integer(name, count, least=0)
            if reward == "exact" and count != 1:
                raise ValueError(f"{name}={count} needs reward='ends'. reward='exact' checks all digits")
        self._reward = reward
        self._first = first
        self._last = last

    def sample(self, rng: Random) -> tuple[str, str]:
        digits = "".join(rng.choices("0123456789", k=rng.randint(3, self.level + 5)))
        return f"reverse {digits}", digits[::-1]

    def reward(self, completion: str, row: Mapping) -> float:
        if self._reward == "exact":
            return super().reward(completion, row)
        given = completion.strip()
        required = row["answer"]
        if not (given.isascii() and given.isdigit() and len(given) == len(required)):
            return 0.0
        begin = slice(self._first)
        end = slice(max(len(required) - self._last, 0), None)
        return float(given[begin] == required[begin] and given[end] == required[end])
