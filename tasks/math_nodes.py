r"""
What `math_answers.py` reads, as lists that JSON can hold, and the tokens that they are read from.

The first item of a list says what it is:

| value | what |
|---|---|
| `["n", "3/4"]` | a number as people write one: decimal, fraction, mixed number, power of ten |
| `["v", name]`, `["c", name]` | a variable; π, e, i, ∞ |
| `["+", …]`, `["*", …]`, `["/", a, b]`, `["^", a, b]`, `["-", a]`, `["f", name, …]` | what is calculated from others |
| `["apply", name, …]` | f(x), of which only the name is known |
| `["matrix", rows]` | |
| `["q", value, size, dimensions]`, `["%", value]` | with a unit, or a percent sign |
| `["seq", brackets, …]`, `["set", …]`, `["list", joint, …]` | tuple, vector or interval; set; several answers |
| `["reals"]`, `["\\cup", a, b]`, `["\\cap", a, b]`, `["\\setminus", a, b]` | sets of numbers |
| `["named", name, value, equation]`, `["=", a, b]`, `["order", signs, …]`, `["in", name, set]` | statements |
| `["mod", modulus, …]`, `["base", digits, base]` | a congruence with its residues, `101_2` |
"""

import re
from fractions import Fraction

from trl_prorl.tasks.latex import CLOSING, OPENING


NUMBER = re.compile(r"[0-9]")
ZERO, TEN = ["n", "0"], ["n", "10"]


class Unread(Exception):
    """The text is not one answer of a known class."""


def number(value: Fraction) -> list:
    return ["n", str(value)]


def value_of(token: str) -> Fraction:
    """Return the value of a token such as `12.5`, `1.5e-3` or `0.1(6)`."""
    digits, _, exponent = token.partition("e")
    digits, _, repeated = digits.rstrip(")").partition("(")
    value = Fraction(digits.rstrip("."))
    if repeated:
        places = len(digits.partition(".")[2])
        value += Fraction(int(repeated), (10 ** len(repeated) - 1) * 10**places)
    return value * Fraction(10) ** int(exponent or 0)


def is_number(token: str | None) -> bool:
    return token is not None and NUMBER.match(token) is not None


def is_whole(node: list) -> bool:
    return node[0] == "n" and "/" not in node[1]


def quotient(top: list, bottom: list) -> list:
    """Return top / bottom: a number if it is a fraction of integers, a calculation if it is an integer itself."""
    if bottom == ZERO:
        raise Unread
    if is_whole(top) and is_whole(bottom):
        value = Fraction(int(top[1]), int(bottom[1]))
        if value.denominator > 1:
            return number(value)
    return ["/", top, bottom]


def negative(node: list) -> list:
    if node[0] == "n":
        return number(-Fraction(node[1]))
    return ["-", node]


def power(base: list, exponent: list) -> list:
    if base == TEN and is_whole(exponent) and abs(int(exponent[1])) < 1000:
        return number(Fraction(10) ** int(exponent[1]))
    return ["^", base, exponent]


def product(factors: list[list]) -> list:
    return factors[0] if len(factors) == 1 else ["*", *factors]


class Tokens:
    """Tokens that are taken one after the other."""

    def __init__(self, tokens: list[str]):
        self.tokens = tokens
        self.place = 0

    def peek(self, ahead: int = 0) -> str | None:
        place = self.place + ahead
        return self.tokens[place] if place < len(self.tokens) else None

    def take(self, expected: str | None = None) -> str:
        token = self.peek()
        if token is None or expected not in (None, token):
            raise Unread
        self.place += 1
        return token

    def close(self) -> None:
        """Go to the end of a group."""
        depth = 0
        while True:
            token = self.take()
            depth += (token in OPENING) - (token in CLOSING)
            if depth == 0:
                return

    def has_sum(self) -> bool:
        """Return whether there is a sum in the brackets that follow, as in x(x+1), not in y(0)."""
        depth = 0
        for place in range(self.place, len(self.tokens)):
            token = self.tokens[place]
            depth += (token in OPENING) - (token in CLOSING)
            if depth == 0:
                return False
            if depth == 1 and token in ("+", "-") and place > self.place + 1:
                return True
        return False
