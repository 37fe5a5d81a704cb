"""Reverse a string of digits."""

from random import Random

from .generated import GeneratedTask


class ReverseDigits(GeneratedTask):
    """
    Write a string of digits backwards: `reverse 12345` -> `54321`.

    Level L, 1 to 8, has strings of 3 to L + 5 digits, every length equally likely, leading zeros included.
    """

    name = "reverse_digits"

    def sample(self, rng: Random) -> tuple[str, str]:
        digits = "".join(rng.choices("0123456789", k=rng.randint(3, self.level + 5)))
        return f"reverse {digits}", digits[::-1]
