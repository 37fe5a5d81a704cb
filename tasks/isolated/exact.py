"""Compare the values of two SymPy expressions."""

import string
from random import Random

import sympy
from sympy.core.evalf import evalf, fastlog


# Working precision: a difference beyond 2,400 digits counts as zero. At a point of variables, 150 digits are enough,
# because several points would have to agree by chance.
NUMBER_BITS = 2**14
POINT_BITS = 2**10
ACCURATE = 20  # a difference with this many accurate bits is not a rounding error
MAX_BITS = 2**17  # larger numbers, such as 9^{9^9}, agree in all digits that are computed, even if they differ
# Expressions with variables are compared at points of different sizes, so |x - 5| does not equal 5 - x.
COMPLEX = {*"zw", *string.ascii_uppercase}
SCALES = (1, 1, 3, 3, 20, 20, 400, 400)


def size(value: tuple) -> float:
    """Return the binary logarithm, rounded up, of a complex number as [`evalf`] gives it; −∞ for zero."""
    real, imaginary, _, _ = value
    return max(fastlog(real), fastlog(imaginary))


def same_number(gold: sympy.Expr, answer: sympy.Expr, precision: int) -> bool | None:
    """
    Return whether two numbers are equal: their difference, computed with `precision` bits, has no accurate digit, or
    is below half of these bits. Return `None` if this cannot be decided.
    """
    if any(number.is_finite is False or number is sympy.nan for number in (gold, answer)):
        return None
    try:
        values = [evalf(number, 2 * ACCURATE, {"maxprec": precision}) for number in (gold, answer, gold - answer)]
        largest = max(size(values[0]), size(values[1]))
        real, imaginary, real_accuracy, imaginary_accuracy = values[2]
    except (NotImplementedError, TypeError, ValueError, AttributeError):
        return None
    is_accurate = (real and real_accuracy >= ACCURATE) or (imaginary and imaginary_accuracy >= ACCURATE)
    if is_accurate and size(values[2]) >= largest - precision // 2:
        return False
    return True if largest < MAX_BITS else None


def points(symbols: set[sympy.Symbol]) -> list[dict]:
    """
    Return points of different sizes at which expressions of these variables are compared, or one without variables.
    Two have integers as coordinates, at which floor and ceiling differ; the others none, so factorials have no poles.
    There z, w and capital letters are complex, so |z|² does not equal z².
    """
    random = Random(0)
    names = sorted(symbols, key=str)
    if not names:
        return [{}]
    between = []
    for scale in SCALES:
        point = {name: sympy.Rational(scale * (7 * random.randint(-8, 8) + random.randint(1, 6)), 7) for name in names}
        between.append({name: value + (sympy.I if str(name) in COMPLEX else 0) for name, value in point.items()})
    return between + [{name: sympy.Integer(sign * random.randint(2, 9)) for name in names} for sign in (1, -1)]


def same_expression(gold: sympy.Expr, answer: sympy.Expr) -> bool:
    """Return whether two expressions are equal, as numbers or at points of their variables."""
    if gold == answer:
        return True
    symbols = gold.free_symbols | answer.free_symbols
    precision = POINT_BITS if symbols else NUMBER_BITS
    decided = False
    for point in points(symbols):
        verdict = same_number(gold.xreplace(point), answer.xreplace(point), precision)
        if verdict is False:
            return False
        decided = decided or verdict is True
    return decided
