"""Make SymPy's expressions of the lists that `tasks/math_answers.py` reads."""

import operator
from functools import reduce

import sympy


MAX_BITS = 2**17  # of a power that is computed
MAX_POWER = 10_000
MAX_FACTORIAL = 3000
CONSTANTS = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "oo": sympy.oo}


class TooLarge(Exception):
    """A number that is not computed."""


def power(base: sympy.Expr, exponent: sympy.Expr) -> sympy.Expr:
    if exponent.is_number:
        if not abs(exponent) <= MAX_POWER:
            raise TooLarge
        if base.is_Rational and abs(exponent) * max(base.p.bit_length(), base.q.bit_length()) > MAX_BITS:
            raise TooLarge
    return base**exponent


def root(inner: sympy.Expr, degree: sympy.Expr) -> sympy.Expr:
    """Return the real root of odd degree of a negative number, and the principal root otherwise."""
    if degree.is_Integer and degree.is_odd and inner.is_Rational and inner < 0:
        return -power(-inner, 1 / degree)
    return power(inner, 1 / degree)


def factorial(inner: sympy.Expr) -> sympy.Expr:
    if inner.is_number and not abs(inner) <= MAX_FACTORIAL:
        raise TooLarge
    return sympy.factorial(inner)


def binomial(top: sympy.Expr, bottom: sympy.Expr) -> sympy.Expr:
    if any(part.is_number and not abs(part) <= MAX_FACTORIAL for part in (top, bottom)):
        raise TooLarge
    return sympy.binomial(top, bottom)


FUNCTIONS = {
    "abs": sympy.Abs,
    "arcsin": sympy.asin,
    "arccos": sympy.acos,
    "arctan": sympy.atan,
    "ln": sympy.log,
    "log": sympy.log,
    "root": root,
    "factorial": factorial,
    "binomial": binomial,
    "degree": lambda inner: inner * sympy.pi / 180,
    **{name: getattr(sympy, name) for name in "sin cos tan cot sec csc sinh cosh tanh exp floor ceiling".split()},
}


def applied(name: str, *inner: sympy.Expr) -> sympy.Symbol:
    """Return a variable for the value of an unknown function; its name has the arguments, expanded."""
    return sympy.Symbol(f"{name}({', '.join(str(sympy.expand(part)) for part in inner)})")


def formula(node: list) -> sympy.Expr | sympy.MatrixBase:
    """Return the expression that a list describes."""
    kind, *parts = node
    if kind == "n":
        return sympy.Rational(parts[0])
    if kind == "v":
        return sympy.Symbol(parts[0])
    if kind == "c":
        return CONSTANTS[parts[0]]
    if kind == "matrix":
        return sympy.Matrix([[formula(entry) for entry in row] for row in parts[0]])
    if kind == "f":
        return FUNCTIONS[parts[0]](*map(formula, parts[1:]))
    if kind == "apply":
        return applied(parts[0], *map(formula, parts[1:]))
    values = [formula(part) for part in parts]
    if kind == "-":
        return -values[0]
    if kind == "^":
        return power(*values)
    return reduce({"+": operator.add, "*": operator.mul, "/": operator.truediv}[kind], values)
