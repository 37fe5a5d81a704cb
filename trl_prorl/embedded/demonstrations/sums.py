"""Wrong rules for chains of additions."""

import operator
import random
from collections.abc import Callable, Mapping, Sequence


def wrong_answer(row: Mapping, rng: random.Random) -> str:
    """
    An answer by one of four wrong rules: forget every carry, skip the working and guess, leave the sum unmarked, or
    leave one number out. A sum without carries comes out right by the first one.
    """
    terms = [int(term) for term in row["prompt"][0]["content"].split()[1:]]
    rule = rng.randrange(4)
    if rule == 0:
        return worked(terms, add_without_carry)
    if rule == 1:
        return f"#### {max(0, sum(terms) + rng.choice([-10, -2, -1, 1, 2, 10]))}"
    if rule == 2:
        return worked(terms).partition(" ####")[0]
    left_out = rng.randrange(len(terms))
    return worked(terms[:left_out] + terms[left_out + 1 :])


def add_without_carry(a: int, b: int) -> int:
    """The sum digit by digit, every carry forgotten: 55 for 17 + 48."""
    return 10 * add_without_carry(a // 10, b // 10) + (a + b) % 10 if a and b else a + b


def worked(terms: Sequence[int], add: Callable[[int, int], int] = operator.add) -> str:
    """An answer as the task wants it, with another rule of addition: `17+48=55 55+5=50 #### 50`."""
    steps, total = [], terms[0]
    for term in terms[1:]:
        steps.append(f"{total}+{term}={add(total, term)}")
        total = add(total, term)
    return " ".join([*steps, f"#### {total}"])
