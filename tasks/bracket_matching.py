"""Decide whether a string of brackets is balanced."""

from random import Random

from trl_prorl.tasks.generated import GeneratedTask


CLOSER = {"(": ")", "[": "]", "{": "}"}


def is_balanced(brackets: str) -> bool:
    """
    Return whether every closing bracket of a string of `()[]{}` closes the latest open bracket, and no bracket stays
    open.
    """
    expected = []
    for bracket in brackets:
        if bracket in CLOSER:
            expected.append(CLOSER[bracket])
        elif not expected or expected.pop() != bracket:
            return False
    return not expected


def sample_balanced(rng: Random, pairs: int) -> str:
    """Return a balanced string of `2 * pairs` brackets."""
    brackets = []
    expected = []
    to_open = pairs
    while to_open or expected:
        if to_open and (not expected or rng.random() < 0.5):
            opener = rng.choice("([{")
            brackets.append(opener)
            expected.append(CLOSER[opener])
            to_open -= 1
        else:
            brackets.append(expected.pop())
    return "".join(brackets)


def sample_unbalanced(rng: Random, pairs: int) -> str:
    """
    Return an unbalanced string of `2 * pairs` brackets, `pairs` >= 2: a balanced string with two brackets swapped. The
    first and last bracket and the count of each kind stay the same, so length, ends and counts do not reveal the
    class.
    """
    while True:
        brackets = list(sample_balanced(rng, pairs))
        i, j = rng.sample(range(1, 2 * pairs - 1), 2)
        brackets[i], brackets[j] = brackets[j], brackets[i]
        if not is_balanced("".join(brackets)):
            return "".join(brackets)


class BracketMatching(GeneratedTask):
    """
    Decide whether a string of brackets is balanced: `balanced, yes or no? ([]{})` -> `yes`.

    Level L, 1 to 8, has 5 to L + 5 pairs of brackets, every number equally likely. About half of the questions are
    balanced (fewer once nearly all balanced strings of a split are drawn). Guessing scores 0.5 on average.
    """

    name = "bracket_matching"

    def sample(self, rng: Random) -> tuple[str, str]:
        # With fewer than 5 pairs there are so few balanced strings that draws without repetition would be mostly
        # unbalanced, and a short length would reveal the answer.
        pairs = rng.randint(5, self.level + 5)
        balanced = rng.random() < 0.5
        brackets = sample_balanced(rng, pairs) if balanced else sample_unbalanced(rng, pairs)
        return f"balanced, yes or no? {brackets}", "yes" if balanced else "no"
