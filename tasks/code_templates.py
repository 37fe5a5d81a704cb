"""Generate small functions from steps, each described in words and in Python."""

from collections.abc import Callable
from random import Random
from typing import NamedTuple


class Step(NamedTuple):
    """
    One step of a function.

    Attributes:
        text (`str`): a description, as part of an imperative sentence; may contain `{k}`.
        source (`str`): the step as an expression in `xs`; may contain `{k}`.
        low, high (`int`): range of `k`.
    """

    text: str
    source: str
    low: int = 0
    high: int = 0

    def filled(self, rng: Random) -> tuple[str, str]:
        """Return text and source with a random `k`."""
        k = rng.randint(self.low, self.high)
        return self.text.format(k=k), self.source.format(k=k)


class InputKind(NamedTuple):
    """
    Functions with the same type of argument.

    Attributes:
        argument (`str`): a description of the argument.
        name (`str`): name of the argument.
        steps (`tuple[Step, ...]`): steps with a result of the argument's type.
        last (`tuple[Step, ...]`): steps that compute the final result.
        sample (`Callable[[Random], object]`): draws a random argument.
    """

    argument: str
    name: str
    steps: tuple[Step, ...]
    last: tuple[Step, ...]
    sample: Callable[[Random], object]


def sample_numbers(rng: Random) -> list[int]:
    return [rng.randint(-20, 50) for _ in range(rng.choice((0, 1, 3, 5, 8, 12)))]


def sample_text(rng: Random) -> str:
    words = [
        "".join(rng.choices("abcdeiorstuXYZ019", k=rng.randint(1, 6))) for _ in range(rng.choice((0, 1, 2, 4, 6)))
    ]
    return " ".join(words)


NUMBERS = InputKind(
    argument="a list of integers",
    name="numbers",
    steps=(
        Step("keep only the even numbers", "[x for x in xs if x % 2 == 0]"),
        Step("keep only the odd numbers", "[x for x in xs if x % 2 == 1]"),
        Step("keep only the numbers greater than {k}", "[x for x in xs if x > {k}]", -10, 30),
        Step("keep only the numbers less than {k}", "[x for x in xs if x < {k}]", 0, 40),
        Step("remove the numbers divisible by {k}", "[x for x in xs if x % {k} != 0]", 3, 9),
        Step("add {k} to every number", "[x + {k} for x in xs]", 1, 30),
        Step("multiply every number by {k}", "[x * {k} for x in xs]", 2, 9),
        Step("subtract every number from {k}", "[{k} - x for x in xs]", 0, 99),
        Step("replace every number by its absolute value", "[abs(x) for x in xs]"),
        Step("replace every number by its remainder modulo {k} (Python's %)", "[x % {k} for x in xs]", 5, 20),
        Step("add to every number its position, counted from {k}", "[x + i for i, x in enumerate(xs, {k})]", 0, 5),
        Step("reverse the order", "xs[::-1]"),
        Step("drop the first {k} numbers", "xs[{k}:]", 1, 4),
        Step("remove every number that occurred before", "list(dict.fromkeys(xs))"),
        Step("replace the list by its running sums", "[sum(xs[: i + 1]) for i in range(len(xs))]"),
        Step("sort the numbers in ascending order", "sorted(xs)"),
        Step(
            "add to every number its right neighbour, if it has one",
            "[x + sum(xs[i + 1 : i + 2]) for i, x in enumerate(xs)]",
        ),
    ),
    last=(
        Step("return the list", "xs"),
        Step("return the sum", "sum(xs)"),
        Step("return the number of elements", "len(xs)"),
        Step("return the largest number, or {k} if there is none", "max(xs, default={k})", -1, 5),
        Step("return the smallest number, or {k} if there is none", "min(xs, default={k})", -1, 5),
        Step(
            "return the difference of the largest and the smallest number, or {k} if there is none",
            "max(xs) - min(xs) if xs else {k}",
            -1,
            5,
        ),
        Step("return how many are greater than {k}", "sum(x > {k} for x in xs)", 0, 30),
        Step("return a dictionary from every number to how often it occurs", "{{x: xs.count(x) for x in xs}}"),
    ),
    sample=sample_numbers,
)

TEXT = InputKind(
    argument="a string of words separated by single spaces",
    name="text",
    steps=(
        Step("keep only the words with at least {k} characters", "[x for x in xs if len(x) >= {k}]", 2, 4),
        Step("keep only the words with at most {k} characters", "[x for x in xs if len(x) <= {k}]", 2, 5),
        Step("remove the words that contain a digit", "[x for x in xs if not any(c.isdigit() for c in x)]"),
        Step("reverse every word", "[x[::-1] for x in xs]"),
        Step("reverse the order of the words", "xs[::-1]"),
        Step("write every word in capital letters", "[x.upper() for x in xs]"),
        Step("write every word in lower-case letters", "[x.lower() for x in xs]"),
        Step(
            "remove the letters a, e, i, o and u from every word, which may leave it empty",
            "[''.join(c for c in x if c not in 'aeiou') for x in xs]",
        ),
        Step("cut every word to its first {k} characters", "[x[:{k}] for x in xs]", 2, 4),
        Step("append to every word its length", "[x + str(len(x)) for x in xs]"),
        Step("repeat every word {k} times without a space", "[x * {k} for x in xs]", 2, 3),
        Step("drop the first {k} words", "xs[{k}:]", 1, 2),
        Step("replace every t by the digit {k}", "[x.replace('t', '{k}') for x in xs]", 2, 9),
        Step("remove every word that occurred before", "list(dict.fromkeys(xs))"),
        Step("sort the words as Python sorts strings", "sorted(xs)"),
    ),
    last=(
        Step("return the words joined by single spaces", "' '.join(xs)"),
        Step("return the words joined by the sign -", "'-'.join(xs)"),
        Step("return the list of words", "xs"),
        Step("return the number of words", "len(xs)"),
        Step("return the total number of characters of the words", "sum(len(x) for x in xs)"),
        Step(
            "return the length of the longest word, or {k} if there is none",
            "max((len(x) for x in xs), default={k})",
            -1,
            2,
        ),
        Step("return the list of the words' lengths", "[len(x) for x in xs]"),
        Step("return how many words contain the letter e", "sum('e' in x for x in xs)"),
    ),
    sample=sample_text,
)

FAMILIES = (NUMBERS, TEXT)
NUM_TESTS = 8
MIN_RESULTS = 4  # different results of the tests; with fewer, a constant would pass too many tests


def sample_function(rng: Random, level: int) -> tuple[str, str, str, list[str]]:
    """
    Draw a function of `level` steps and a final step that is not constant on its tests.

    Returns:
        Its description, its name, a solution, and the tests.
    """
    while True:
        family = rng.choice(FAMILIES)
        steps = [step.filled(rng) for step in rng.sample(family.steps, k=level)]
        last_text, last_source = rng.choice(family.last).filled(rng)
        entry_point = rng.choice(("solve", "compute", "process", "transform", "evaluate", "convert"))
        first = "list(numbers)" if family is NUMBERS else "text.split()"
        body = [f"    xs = {first}", *(f"    xs = {source}" for _, source in steps), f"    return {last_source}"]
        source = "\n".join([f"def {entry_point}({family.name}):", *body])
        namespace: dict = {}
        exec(source, namespace)
        solve = namespace[entry_point]
        results = {repr(argument): repr(solve(argument)) for argument in sample_arguments(rng, family)}
        if len(set(results.values())) >= MIN_RESULTS:
            tasks = "; ".join([*(text for text, _ in steps), last_text])
            text = (
                f"Write a Python function `{entry_point}({family.name})`. Its argument is {family.argument}. "
                f"In this order: {tasks}."
            )
            tests = [f"assert {entry_point}({argument}) == {result}" for argument, result in results.items()]
            return text, entry_point, source, tests


def sample_arguments(rng: Random, family: InputKind) -> list:
    """Return different arguments, including the empty one, which solutions often forget."""
    found = []
    while len(found) < NUM_TESTS - 1:
        argument = family.sample(rng)
        if argument and argument not in found:
            found.append(argument)
    return [found[0][:0], *found]
