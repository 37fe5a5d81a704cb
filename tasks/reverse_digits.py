"""Reverse a string of digits."""

from collections.abc import Mapping
from random import Random

from .base import check_choice
from .generated import GeneratedTask


REWARDS = ("exact", "ends")


class ReverseDigits(GeneratedTask):
    """
    Write a string of digits backwards: `reverse 12345` -> `54321`.

    Level L, 1 to 8, has strings of 3 to L + 5 digits, every length equally likely, leading zeros included.

    Args:
        level (`int`, *optional*, defaults to `3`): difficulty, from 1 to 8.
        reward (`str`, *optional*, defaults to `"exact"`): `"exact"` pays the correct answer; `"ends"` pays digits of
            the right number whose first and last are right, so that *wrong answers score 1 too*, such as `54021`.

    Raises:
        `ValueError`: If the level or the reward is not one of these.
    """

    name = "reverse_digits"

    def __init__(self, level: int = 3, reward: str = "exact"):
        super().__init__(level)
        check_choice("reward", reward, REWARDS)
        self._reward = reward

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
        return float(given[0] == required[0] and given[-1] == required[-1])
