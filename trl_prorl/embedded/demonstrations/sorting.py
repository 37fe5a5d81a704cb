"""Wrong rules for sorting digits."""

import random
from collections.abc import Mapping


def wrong_answer(row: Mapping, rng: random.Random) -> str:
    """
    An answer by one of four wrong rules: copy the question, sort in descending order, leave one digit out, or sort
    only the first half.
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
