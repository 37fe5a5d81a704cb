"""Compare the values of two SymPy expressions. math-verify itself compares only 6 decimals or 15 digits."""

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
SCALES = (1, 1, 3, 3, 20, 20, 400, 400)
# Expressions that can only be compared symbolically.
SYMBOLIC = (sympy.Integral, sympy.Derivative, sympy.Sum, sympy.Product, sympy.Limit)


def decimal(text: str) -> sympy.Expr:
    """Convert `1,234`, `0.25` or `1E-20` exactly: to an integer, or an integer times a power of ten."""
    digits, _, exponent = text.replace(",", "").lower().partition("e")
    whole, _, places = digits.partition(".")
    number = sympy.Integer(whole + places)
    shift = int(exponent or 0) - len(places)
    if shift == 0:
        return number
    return sympy.Mul(number, sympy.Pow(10, shift, evaluate=False), evaluate=False)


def size(value: tuple) -> float:
    """Return the binary logarithm, rounded up, of a complex number as [`evalf`] gives it; −∞ for zero."""
    real, imaginary, _, _ = value
    return max(fastlog(real), fastlog(imaginary))


def same_number(gold: sympy.Expr, answer: sympy.Expr, precision: int) -> bool | None:
    """
    Return whether two numbers are equal: their difference, computed with `precision` bits, has no accurate digit, or
    is below half of these bits. Return `None` if this cannot be decided.
    """
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


def same_expression(gold: sympy.Expr, answer: sympy.Expr) -> bool:
    """Return whether two expressions are equal, as numbers or at points of their variables."""
    verdicts = []
    symbols = gold.free_symbols | answer.free_symbols
    if not gold.has(*SYMBOLIC) and not answer.has(*SYMBOLIC):
        random = Random(0)
        names = sorted({symbol.name for symbol in symbols})
        for scale in SCALES if symbols else [1]:
            point = {name: sympy.Rational(scale * random.randint(-60, 60), 7) for name in names}
            values = {symbol: point[symbol.name] for symbol in symbols}
            precision = POINT_BITS if symbols else NUMBER_BITS
            verdicts.append(same_number(gold.xreplace(values), answer.xreplace(values), precision))
            if verdicts[-1] is False:
                return False
    return True in verdicts or sympy.simplify(gold - answer).is_zero is True


def percentage(expression: sympy.Basic) -> sympy.Basic | None:
    """Return x of x %; `None` for anything else."""
    per_cent = sympy.UnevaluatedExpr(sympy.Rational(1, 100))
    if expression.is_Mul and len(expression.args) == 2 and expression.args[1] == per_cent:
        return expression.args[0]
    return None


def same_value(gold: sympy.Basic, answer: sympy.Basic, *precision: int) -> bool:
    """
    Return whether two expressions, or two matrices, are equal. `x %` equals x and x/100, as in math-verify. Numbers
    are compared by [`same_number`], expressions with variables at points.

    Args:
        precision (`int`): the digits that math-verify passes; ignored.
    """
    if isinstance(gold, sympy.MatrixBase) and isinstance(answer, sympy.MatrixBase):
        return gold.shape == answer.shape and all(map(same_value, gold.flat(), answer.flat()))
    if not isinstance(gold, sympy.Expr) or not isinstance(answer, sympy.Expr):
        return False
    if same_expression(gold, answer):
        return True
    percentages = [percentage(gold), percentage(answer)]
    if percentages == [None, None]:
        return False
    gold, answer = (whole if part is None else part for whole, part in zip((gold, answer), percentages, strict=True))
    return same_expression(gold, answer)
