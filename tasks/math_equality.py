"""Compare two mathematical answers with math-verify."""

from decimal import Decimal, InvalidOperation
from pathlib import Path

from trl_prorl.tasks.final_answer import as_number, number_value
from trl_prorl.tasks.worker import Worker


SECONDS = 5.0
MAX_LENGTH = 1000  # characters; longer answers are not parsed, because parsing is slower than linear

WORKER = Worker(Path(__file__).with_name("isolated") / "math_worker.py", SECONDS)


def equal(gold: str, answer: str) -> bool:
    """
    Return whether math-verify considers two answers equal, with exact numbers instead of its 15 digits. Never raises
    on any text, and returns `False` after 5 s.

    It runs in a separate process, which is killed at the limit: no signal interrupts the single integer power in
    `(9^{9^{9^{9}}}, 1)`, and math-verify's signals fail outside the main thread.

    Args:
        gold (`str`), answer (`str`): LaTeX without delimiters, such as `\\frac{1}{2}`.

    Raises:
        `RuntimeError`: If math-verify cannot be started.
    """
    if max(len(gold), len(answer)) > MAX_LENGTH:
        return False
    reply = WORKER.ask({"gold": gold, "answer": answer})
    return reply is not None and reply.get("equal", False)


def is_integer(number: str) -> bool:
    """Return whether a number in plain LaTeX is an integer, possibly with zeros after the decimal point."""
    try:
        return Decimal(number) % 1 == 0
    except InvalidOperation:
        return False


def equal_number(gold: str, answer: str) -> bool:
    """
    Return whether the answer is exactly this number, in any notation of [`as_number`]. Rational numbers are compared
    exactly, because math-verify rounds: it accepts 0.333333 for 1/3. A fraction instead of an integer, such as `84/2`,
    counts as an unevaluated division.

    Args:
        gold (`str`): a number in plain LaTeX.
        answer (`str`): any text.
    """
    notation = as_number(answer)
    if notation is None or ("\\frac" in notation and is_integer(gold)):
        return False
    value = number_value(notation)
    return value is not None and value == number_value(gold)
