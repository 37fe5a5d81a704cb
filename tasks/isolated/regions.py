"""Compare sets of real numbers: intervals, their unions, and inequalities with one variable."""

import sympy
from exact import NUMBER_BITS, same_number
from formulas import formula


OPERATIONS = {"\\cup": lambda a, b: a or b, "\\cap": lambda a, b: a and b, "\\setminus": lambda a, b: a and not b}
SIGNS = {"<": (-1,), ">": (1,), "\\le": (-1, 0), "\\ge": (0, 1), "\\ne": (-1, 1)}
KINDS = {"reals", "seq", "set", "order", "list", *OPERATIONS}
X = sympy.Symbol("x", real=True)


def order(left: sympy.Expr, right: sympy.Expr) -> int:
    """
    Return -1, 0 or 1: whether a real number is smaller than another, equal or larger.

    Raises:
        `ValueError`: If one of them is not a real number.
    """
    if left == right:
        return 0
    if sympy.oo in (left, -right):
        return 1
    if sympy.oo in (-left, right):
        return -1
    if not (left.is_real and right.is_real):
        raise ValueError
    if same_number(left, right, NUMBER_BITS):
        return 0
    return 1 if sympy.N(left - right, 50) > 0 else -1


class Region:
    """
    A set of real numbers.

    Raises:
        `ValueError`: If a list describes none.
    """

    def __init__(self, node: list):
        self.node = node
        self.variables: set[sympy.Symbol] = set()
        self.cuts: list[sympy.Expr] = []  # membership may change here
        self.within = self.read(node)

    def read(self, node: list):
        """Return a function that tells whether a number is in the set."""
        kind, *parts = node
        if kind == "reals":
            return lambda number: True
        if kind in OPERATIONS:
            first, second = map(self.read, parts)
            return lambda number: OPERATIONS[kind](first(number), second(number))
        if kind == "set":
            elements = [formula(part) for part in parts]
            self.cuts += elements
            return lambda number: any(order(number, element) == 0 for element in elements)
        if kind == "seq":
            return self.interval(*parts)
        if kind == "order":
            return self.inequality(*parts)
        if kind == "list" and parts[0] in ("and", "or") and all(part[0] == "order" for part in parts[1:]):
            conditions = [self.read(part) for part in parts[1:]]
            every = all if parts[0] == "and" else any
            return lambda number: every(condition(number) for condition in conditions)
        raise ValueError

    def interval(self, brackets: str, *ends: list):
        if len(ends) != 2 or brackets == "<>":
            raise ValueError
        low, high = map(formula, ends)
        if order(low, high) >= 0:
            raise ValueError
        self.cuts += [end for end in (low, high) if end.is_finite]
        lowest, highest = (0 if bracket in "[]" else 1 for bracket in brackets)
        return lambda number: order(number, low) >= lowest and order(high, number) >= highest

    def inequality(self, signs: list[str], *sides: list):
        values = [formula(side) for side in sides]
        symbols = set().union(*(side.free_symbols for side in values))
        self.variables |= symbols
        if len(self.variables) != 1:
            raise ValueError
        values = [side.xreplace(dict.fromkeys(symbols, X)) for side in values]
        for left, right in zip(values, values[1:], strict=False):
            self.cuts += changes(left - right)
        steps = list(zip(signs, values, values[1:], strict=False))

        def within(number: sympy.Expr) -> bool:
            for sign, *sides in steps:
                left, right = (side.xreplace({X: number}) for side in sides)
                if left.is_finite is False or right.is_finite is False or sympy.nan in (left, right):
                    return False  # a pole
                if order(left, right) not in SIGNS[sign]:
                    return False
            return True

        return within


def changes(difference: sympy.Expr) -> list[sympy.Expr]:
    """
    Return the points at which a rational expression, possibly with absolute values, may change its sign.

    Raises:
        `ValueError`: If it is another expression.
    """
    known = difference.atoms(sympy.Function) <= difference.atoms(sympy.Abs)
    if not known or not all(part.exp.is_Integer for part in difference.atoms(sympy.Pow) if part.has(X)):
        raise ValueError
    found = []
    for part in sympy.fraction(sympy.together(difference)):
        zeros = sympy.solveset(part, X, sympy.S.Reals) if part.has(X) else sympy.S.EmptySet
        if not isinstance(zeros, sympy.FiniteSet) and zeros is not sympy.S.EmptySet:
            raise ValueError
        found += zeros
    return found


def samples(cuts: list[sympy.Expr]) -> list[sympy.Expr]:
    """Return the cuts, a number between neighbours, and one on either side of all."""
    ordered = sorted(cuts, key=lambda cut: sympy.N(cut, 50))
    middles = [
        sympy.Rational(str(sympy.N((low + high) / 2, 50))) for low, high in zip(ordered, ordered[1:], strict=False)
    ]
    return [*ordered, *middles, ordered[0] - 1, ordered[-1] + 1] if ordered else [sympy.Integer(0)]


def same_region(gold: list, answer: list) -> bool:
    """
    Return whether two lists describe the same set of real numbers, with the same variable if both name one.

    Raises:
        `ValueError`: If one of them describes no set of real numbers.
    """
    regions = Region(gold), Region(answer)
    if len(regions[0].variables | regions[1].variables) > 1:
        return False
    numbers = samples(regions[0].cuts + regions[1].cuts)
    return all(regions[0].within(number) == regions[1].within(number) for number in numbers)
