"""The wrong rules of the demonstrations on which an embedded model is warm-started, for each task."""

import operator
import random
from collections.abc import Callable, Mapping, Sequence


def wrong_reversal(row: Mapping, rng: random.Random) -> str:
    """Digits to reverse, by one of four wrong rules: copy the question, sort, rotate by one, or random digits."""
    question = row["answer"][::-1]
    rule = rng.randrange(4)
    if rule == 0:
        return question
    if rule == 1:
        return "".join(sorted(question))
    if rule == 2:
        return question[1:] + question[:1]
    return "".join(rng.choice("0123456789") for _ in question)


def wrong_order(row: Mapping, rng: random.Random) -> str:
    """
    Digits to sort, by one of four wrong rules: copy the question, sort in descending order, leave one digit out, or
    sort only the first half.
    """
    question = row["prompt"][0]["content"].split()[1:]
    right = row["answer"].split()
    rule = rng.randrange(4)
    if rule == 0:
        wrong = question
    elif rule == 1:
        wrong = right[::-1]
    elif rule == 2:
        left_out = rng.randrange(len(right))
        wrong = right[:left_out] + right[left_out + 1 :]
    else:
        half = len(question) // 2
        wrong = sorted(question[:half]) + question[half:]
    return " ".join(wrong)


def wrong_sum(row: Mapping, rng: random.Random) -> str:
    """
    A chain of additions by one of four wrong rules: forget every carry, skip the working and guess, leave the sum
    unmarked, or leave one number out. A sum without carries comes out right by the first one.
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


# task -> a wrong answer to a row of it, drawn with a generator.
WRONG_ANSWERS = {"reverse_digits": wrong_reversal, "sorting": wrong_order, "sums": wrong_sum}
