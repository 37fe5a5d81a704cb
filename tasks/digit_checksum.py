"""Sum of digits modulo 10."""

from random import Random

from trl_prorl.tasks.generated import GeneratedTask


def digit_checksum(digits: str) -> str:
    """Return the last digit of the sum of the decimal digits."""
    return str(sum(int(digit) for digit in digits) % 10)


class DigitChecksum(GeneratedTask):
    """
    Last digit of the sum of digits: `digit sum mod 10: 12345` -> `5`.

    Level L, 1 to 8, has strings of 3 to L + 5 digits, every length equally likely, leading zeros included. Guessing
    scores 0.1 on average.
    """

    name = "digit_checksum"

    def sample(self, rng: Random) -> tuple[str, str]:
        digits = "".join(rng.choices("0123456789", k=rng.randint(3, self.level + 5)))
        return f"digit sum mod 10: {digits}", digit_checksum(digits)
