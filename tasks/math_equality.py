"""Whether two mathematical answers are the same, as math-verify reads them."""

from decimal import Decimal, InvalidOperation
from pathlib import Path

from trl_prorl.tasks.final_answer import as_number, number_value
from trl_prorl.tasks.worker import Worker


SECONDS = 5.0
MAX_LENGTH = 1000  # characters; no answer is longer, and parsing takes more than linear time

WORKER = Worker(Path(__file__).with_name("isolated") / "math_worker.py", SECONDS)


def equal(gold: str, answer: str) -> bool:
    """
    Return whether math-verify considers the two equal, with exact numbers in place of its 15 digits; never raises on
    any text, and returns `False` after 5 s. It works in a separate process, which is killed at the limit. No signal
    interrupts `(9^{9^{9^{9}}}, 1)`, where a single integer power is compared, and math-verify's signals fail outside
    the main thread.

    Args:
        gold (`str`), answer (`str`): LaTeX without delimiters, such as `\\frac{1}{2}`.

    Raises:
        `RuntimeError`: If math-verify cannot be started at all.
    """
    if max(len(gold), len(answer)) > MAX_LENGTH:
        return False
    reply = WORKER.ask({"gold": gold, "answer": answer})
    return reply is not None and reply.get("equal", False)


def is_integer(number: str) -> bool:
    """Return whether a number in plain LaTeX is written as an integer, perhaps with zeros after the point."""
    try:
        return Decimal(number) % 1 == 0
    except InvalidOperation:
        return False


def equal_number(gold: str, answer: str) -> bool:
    """
    Return whether the answer is exactly the number, in any notation of [`as_number`]; a calculation is not. Rational
    numbers are compared exactly, because math-verify rounds: it takes 0.333333 for a third. A fraction in place of an
    integer, as in `84/2`, counts as a division that was not carried out.

    Args:
        gold (`str`): a number in plain LaTeX.
        answer (`str`): any text.
    """
    notation = as_number(answer)
    if notation is None or ("\\frac" in notation and is_integer(gold)):
        return False
    value = number_value(notation)
    return value is not None and value == number_value(gold)
