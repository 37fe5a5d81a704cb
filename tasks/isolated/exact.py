"""Compare the values of two SymPy expressions. math-verify itself compares only 6 decimals or 15 digits."""

from fractions import Fraction
from math import factorial
from random import Random

import sympy
from sympy.core.evalf import evalf, fastlog


MAX_BITS = 2**16  # size limit of exact numbers: 9^{9^9} has a billion bits
# Working precision for irrational numbers: a difference beyond 2,400 digits counts as zero. At a point of variables,
# 150 digits are enough, because several points would have to agree by chance.
NUMBER_BITS = 2**14
POINT_BITS = 2**10
ACCURATE = 20  # a difference with this many accurate bits is not a rounding error
# Expressions with variables are compared at points of different sizes, so |x - 5| does not equal 5 - x.
SCALES = (1, 1, 3, 3, 20, 20, 400, 400)
# Expressions that can only be compared symbolically.
SYMBOLIC = (sympy.Integral, sympy.Derivative, sympy.Sum, sympy.Product, sympy.Limit)


class TooLarge(ArithmeticError):
    """Raised for an exact number of more than `MAX_BITS`."""


def decimal(text: str) -> sympy.Expr:
    """Convert `1,234`, `0.25` or `1E-20` exactly: to an integer, or an integer times a power of ten."""
    digits, _, exponent = text.replace(",", "").lower().partition("e")
    whole, _, places = digits.partition(".")
    number = sympy.Integer(whole + places)
    shift = int(exponent or 0) - len(places)
    if shift == 0:
        return number
    return sympy.Mul(number, sympy.Pow(10, shift, evaluate=False), evaluate=False)


def bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def bounded(value: Fraction) -> Fraction:
    """Return the value, or raise [`TooLarge`]."""
    if bits(value) > MAX_BITS:
        raise TooLarge
    return value


def power(base: Fraction, exponent: Fraction) -> Fraction | None:
    """Return the power for an integer exponent; `None` for other exponents, whose value may be irrational."""
    if exponent.denominator != 1 or (base == 0 and exponent < 0):
        return None
    if abs(exponent) * (bits(base) - 1) > MAX_BITS:
        raise TooLarge
    return base**exponent.numerator


def rational_value(expression: sympy.Basic, point: dict[str, Fraction]) -> Fraction | None:
    """
    Return the exact value of an expression of rational numbers, + − × ÷ ^ and !; `None` for anything else.

    Args:
        expression (`sympy.Basic`): an unevaluated expression, as math-verify parses it.
        point (`dict[str, Fraction]`): values of the variables, by name.

    Raises:
        [`TooLarge`]: If the value of any part is too large, even if the expression as such is not rational.
    """
    if expression.is_Float:
        return Fraction(str(expression))  # the digits as written
    if expression.is_Rational:
        return Fraction(int(expression.p), int(expression.q))
    if expression.is_Symbol:
        return point.get(expression.name)
    values = [rational_value(part, point) for part in expression.args]
    if not values or None in values:
        return None
    if expression.is_Add:
        total = Fraction(0)
        for value in values:
            total = bounded(total + value)
        return total
    if expression.is_Mul:
        product = Fraction(1)
        for value in values:
            product = bounded(product * value)
        return product
    if expression.is_Pow:
        return power(*values)
    (value, *others) = values
    if isinstance(expression, sympy.factorial) and value.denominator == 1 and value >= 0:
        if value.numerator * value.numerator.bit_length() > MAX_BITS:
            raise TooLarge
        return Fraction(factorial(value.numerator))
    return value if isinstance(expression, sympy.UnevaluatedExpr) else None


def refuse_too_large(expression: sympy.Basic | sympy.MatrixBase | str) -> None:
    """Raise [`TooLarge`] if an exact number anywhere in an expression, a set or a matrix is too large."""
    if isinstance(expression, sympy.MatrixBase):
        for part in expression.flat():
            rational_value(part, {})
    elif isinstance(expression, sympy.Basic):
        rational_value(expression, {})


def size(value: tuple) -> float:
    """Return the binary logarithm, rounded up, of a complex number as [`evalf`] gives it; −∞ for zero."""
    real, imaginary, _, _ = value
    return max(fastlog(real), fastlog(imaginary))


def same_number(gold: sympy.Expr, answer: sympy.Expr, precision: int) -> bool | None:
    """
    Return whether two numbers are equal: their difference, computed with `precision` bits, has no accurate digit, or
    is below half of these bits. Return `None` if one of them cannot be evaluated.
    """
    options = {"maxprec": precision}
    values = [evalf(number, 2 * ACCURATE, dict(options)) for number in (gold, answer, gold - answer)]
    if not all(isinstance(value, tuple) for value in values):
        return None
    real, imaginary, real_accuracy, imaginary_accuracy = values[2]
    is_accurate = (real and real_accuracy >= ACCURATE) or (imaginary and imaginary_accuracy >= ACCURATE)
    return not is_accurate or size(values[2]) < max(size(values[0]), size(values[1])) - precision // 2


def same_at(gold: sympy.Expr, answer: sympy.Expr, point: dict[str, Fraction]) -> bool | None:
    """Return whether two expressions have the same value at a point; `None` if one cannot be evaluated."""
    values = [rational_value(expression, point) for expression in (gold, answer)]
    if None not in values:
        return values[0] == values[1]
    try:
        numbers = [at(expression, point) for expression in (gold, answer)]
        return same_number(*numbers, POINT_BITS if point else NUMBER_BITS)
    except (NotImplementedError, TypeError, ValueError, AttributeError):
        return None


def at(expression: sympy.Expr, point: dict[str, Fraction]) -> sympy.Expr:
    """Substitute numbers for the variables of an expression."""
    numbers = {name: sympy.Rational(value.numerator, value.denominator) for name, value in point.items()}
    return expression.xreplace({symbol: numbers[symbol.name] for symbol in expression.free_symbols})


def points(names: list[str]) -> list[dict[str, Fraction]]:
    """Return pseudo-random values for the variables, always the same; one empty point without variables."""
    if not names:
        return [{}]
    random = Random(0)
    return [{name: Fraction(scale * random.randint(-60, 60), 7) for name in names} for scale in SCALES]


def same_expression(gold: sympy.Expr, answer: sympy.Expr) -> bool:
    """
    Return whether two expressions are equal, as numbers or for all values of their variables.

    Raises:
        [`TooLarge`]: If the values at the first point are too large to be computed.
    """
    equal_points = 0
    if not gold.has(*SYMBOLIC) and not answer.has(*SYMBOLIC):
        for point in points(sorted({symbol.name for symbol in gold.free_symbols | answer.free_symbols})):
            try:
                same = same_at(gold, answer, point)
            except TooLarge:
                if equal_points == 0:
                    raise
                break
            if same is False:
                return False
            if same:
                equal_points += 1
    if equal_points > 0:
        return True
    return sympy.simplify(gold - answer).is_zero is True


def percentage(expression: sympy.Basic) -> sympy.Basic | None:
    """Return x of x %; `None` for anything else."""
    per_cent = sympy.UnevaluatedExpr(sympy.Rational(1, 100))
    if expression.is_Mul and len(expression.args) == 2 and expression.args[1] == per_cent:
        return expression.args[0]
    return None


def same_value(gold: sympy.Basic, answer: sympy.Basic, *precision: int) -> bool:
    """
    Return whether two expressions, or two matrices, are equal. `x %` equals x and x/100, as in math-verify. Rational
    numbers are compared exactly, other numbers by [`same_number`], expressions with variables at points.

    Args:
        precision (`int`): the digits that math-verify passes; ignored.

    Raises:
        [`TooLarge`]: If a number in them is too large to be computed.
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
