"""Wrong rules for reversing digits."""

import random
from collections.abc import Mapping


def wrong_answer(row: Mapping, rng: random.Random) -> str:
    """An answer by one of four wrong rules: copy the question, sort, rotate by one, or random digits."""
    question = row["answer"][::-1]
    rule = rng.randrange(4)
    if rule == 0:
        return question
    if rule == 1:
        return "".join(sorted(question))
    if rule == 2:
        return question[1:] + question[:1]
    return "".join(rng.choice("0123456789") for _ in question)
