"""Whether two expressions of SymPy have the same value. math-verify itself compares 6 decimals or 15 digits."""

from fractions import Fraction
from math import factorial
from random import Random

import sympy
from sympy.core.evalf import evalf, fastlog


MAX_BITS = 2**16  # of an exact number: 9^{9^9} has a billion
# Working precision for irrational numbers: a difference beyond 2,400 of their digits counts as zero. At a point of
# variables one beyond 150 digits does, because several points would have to agree by chance.
NUMBER_BITS = 2**14
POINT_BITS = 2**10
ACCURATE = 20  # bits of a difference that is none of rounding
# Expressions with variables are compared at points. Their sizes differ, so that |x - 5| is not taken for 5 - x.
SCALES = (1, 1, 3, 3, 20, 20, 400, 400)
# What only symbolic work can compare.
SYMBOLIC = (sympy.Integral, sympy.Derivative, sympy.Sum, sympy.Product, sympy.Limit)


class TooLarge(ArithmeticError):
    """An exact number of more than `MAX_BITS`."""


def decimal(text: str) -> sympy.Expr:
    """Return a number as it is written, `1,234`, `0.25` or `1E-20`: an integer, or one times a power of ten."""
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
    """Return the power of an integer exponent; `None` for another one, whose value may be irrational."""
    if exponent.denominator != 1 or (base == 0 and exponent < 0):
        return None
    if abs(exponent) * (bits(base) - 1) > MAX_BITS:
        raise TooLarge
    return base**exponent.numerator


def rational_value(expression: sympy.Basic, point: dict[str, Fraction]) -> Fraction | None:
    """
    Return the exact value of an expression of rational numbers, + − × ÷ ^ and !; `None` for anything else.

    Args:
        expression (`sympy.Basic`): unevaluated, as math-verify parses it.
        point (`dict[str, Fraction]`): values of the variables, by name.

    Raises:
        [`TooLarge`]: If the value of any part of it is too large, also of a part of what is not rational.
    """
    if expression.is_Float:
        return Fraction(str(expression))  # the digits as they were written
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
    is below half of these bits. Returns `None` if one of them has no value.
    """
    options = {"maxprec": precision}
    values = [evalf(number, 2 * ACCURATE, dict(options)) for number in (gold, answer, gold - answer)]
    if not all(isinstance(value, tuple) for value in values):
        return None
    real, imaginary, real_accuracy, imaginary_accuracy = values[2]
    is_accurate = (real and real_accuracy >= ACCURATE) or (imaginary and imaginary_accuracy >= ACCURATE)
    return not is_accurate or size(values[2]) < max(size(values[0]), size(values[1])) - precision // 2


def same_at(gold: sympy.Expr, answer: sympy.Expr, point: dict[str, Fraction]) -> bool | None:
    """Return whether two expressions have the same value at a point; `None` if one of them has none."""
    values = [rational_value(expression, point) for expression in (gold, answer)]
    if None not in values:
        return values[0] == values[1]
    try:
        numbers = [at(expression, point) for expression in (gold, answer)]
        return same_number(*numbers, POINT_BITS if point else NUMBER_BITS)
    except (NotImplementedError, TypeError, ValueError, AttributeError):
        return None


def at(expression: sympy.Expr, point: dict[str, Fraction]) -> sympy.Expr:
    """Return an expression with numbers in place of its variables."""
    numbers = {name: sympy.Rational(value.numerator, value.denominator) for name, value in point.items()}
    return expression.xreplace({symbol: numbers[symbol.name] for symbol in expression.free_symbols})


def points(names: list[str]) -> list[dict[str, Fraction]]:
    """Return values for the variables, drawn at random but always the same; without variables one empty point."""
    if not names:
        return [{}]
    random = Random(0)
    return [{name: Fraction(scale * random.randint(-60, 60), 7) for name in names} for scale in SCALES]


def same_expression(gold: sympy.Expr, answer: sympy.Expr) -> bool:
    """
    Return whether two expressions are equal, as numbers or for all values of their variables.

    Raises:
        [`TooLarge`]: If their values are too large to be computed, at the first point already.
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
    numbers are compared exactly, others by
    [`same_number`], expressions with variables at points.

    Args:
        precision (`int`): the digits of math-verify, which do not matter.

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
