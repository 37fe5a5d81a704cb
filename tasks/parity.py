"""Parity of a string of bits."""

from random import Random

from trl_prorl.tasks.generated import GeneratedTask


def parity(bits: str) -> str:
    """Return `"even"` or `"odd"`: the parity of the number of ones in a string of `0` and `1`."""
    return "odd" if bits.count("1") % 2 else "even"


class Parity(GeneratedTask):
    """
    Decide whether the number of ones is even or odd: `ones even or odd? 10110` -> `odd`.

    Level L, 1 to 8, has strings of 4 to 4 L + 8 bits, every length equally likely. Guessing scores 0.5 on average.
    """

    name = "parity"

    def sample(self, rng: Random) -> tuple[str, str]:
        bits = "".join(rng.choices("01", k=rng.randint(4, 4 * self.level + 8)))
        return f"ones even or odd? {bits}", parity(bits)
