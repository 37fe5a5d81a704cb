"""Compare the values of two SymPy expressions."""

import string
from collections.abc import Iterator
from random import Random

import sympy
from sympy.core.evalf import evalf


# Working precision: a difference beyond 4,900 digits counts as zero. At a point of variables, 300 digits are enough,
# because several points would have to agree by chance.
NUMBER_BITS = 2**14
POINT_BITS = 2**10
ACCURATE = 20  # a difference with this many accurate bits is not a rounding error
# Expressions with variables are compared at points of different sizes, so |x - 5| does not equal 5 - x.
SCALES = (1, 1, 3, 3, 20, 20, 400, 400)
COMPLEX = {*"zw", *string.ascii_uppercase}


def same_number(gold: sympy.Expr, answer: sympy.Expr, precision: int) -> bool | None:
    """
    Return whether the difference of two numbers, computed with `precision` bits, has no accurate digit; `None` if one
    is not finite.
    """
    if any(number.is_finite is False or number is sympy.nan for number in (gold, answer)):
        return None
    real, imaginary, *accuracies = evalf(gold - answer, 2 * ACCURATE, {"maxprec": precision})
    parts = zip((real, imaginary), accuracies, strict=True)
    return not any(part and accuracy >= ACCURATE for part, accuracy in parts)


def points(symbols: set[sympy.Symbol]) -> Iterator[dict]:
    """
    Yield points of different sizes at which expressions of these variables are compared, or one without variables.
    There z, w and capital letters are complex, so |z|² does not equal z².
    """
    random = Random(0)
    for scale in SCALES if symbols else (1,):
        yield {
            name: sympy.Rational(scale * (7 * random.randint(-8, 8) + random.randint(1, 6)), 7)
            + (sympy.I if str(name) in COMPLEX else 0)
            for name in sorted(symbols, key=str)
        }


def same_expression(gold: sympy.Expr, answer: sympy.Expr) -> bool:
    """Return whether two expressions are equal, as numbers or at points of their variables."""
    if gold == answer:
        return True
    symbols = gold.free_symbols | answer.free_symbols
    precision = POINT_BITS if symbols else NUMBER_BITS
    verdicts = {same_number(gold.xreplace(point), answer.xreplace(point), precision) for point in points(symbols)}
    return verdicts - {None} == {True}


def is_multiple(first: sympy.Expr, second: sympy.Expr) -> bool:
    """Return whether one expression is a constant multiple of the other, after fractions are cleared."""
    first, second = (sympy.fraction(sympy.together(each))[0] for each in (first, second))
    if not first.free_symbols or first.free_symbols != second.free_symbols:
        return False
    for base in points(first.free_symbols):
        scales = first.xreplace(base), second.xreplace(base)
        if all(same_number(scale, sympy.S.Zero, POINT_BITS) is False for scale in scales):
            return same_expression(first * scales[1], second * scales[0])
    return False
