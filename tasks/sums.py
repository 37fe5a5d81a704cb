"""Chains of additions, solved step by step: grade-school arithmetic for the smallest models."""

from collections.abc import Mapping
from random import Random

from trl_prorl.tasks.generated import GeneratedTask
from trl_prorl.tasks.gsm8k import MarkedNumber


MARK = "####"


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
    """

    name = "sums"

    def sample(self, rng: Random) -> tuple[str, str, dict]:
        count = rng.randint(2, self.level + 1)
        terms = []
        for _ in range(count):
            has_two_digits = rng.randrange(4) == 0
            terms.append(rng.randint(10, 99) if has_two_digits else rng.randint(1, 9))
        question = f"add {' '.join(map(str, terms))}"
        return question, str(sum(terms)), {"working": working(terms)}

    def gold(self, row: Mapping) -> str:
        return f"{row['working']} {MARK} {row['answer']}"
