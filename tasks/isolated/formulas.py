r"""Read tokens of LaTeX as one expression of SymPy. They are read whole, or not at all."""

import re

import sympy
from latex import is_number, value_of


MAX_POWER = 10_000  # of a number
GREEK = {
    "\\" + name
    for name in """alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta kappa lambda mu nu xi rho sigma
    tau phi varphi chi psi omega Gamma Theta Lambda Xi Pi Sigma Phi Psi Omega ell""".split()
}
CONSTANTS = {r"\pi": sympy.pi, "e": sympy.E, "i": sympy.I, r"\infty": sympy.oo}
FUNCTIONS = {"\\" + name: getattr(sympy, name) for name in "sin cos tan cot sec csc exp".split()}
FUNCTIONS |= {r"\ln": sympy.log, r"\log": sympy.log}
APPLIED = {*"fghFGHPT", r"\Gamma", r"\zeta", r"\phi", r"\varphi", r"\Phi", r"\psi", r"\Psi"}  # f(x) is no product
NAMED = re.compile("[A-Zfgh]")  # A^T and f^{-1} are no powers
# Words among the runs of up to three letters; the others are products of variables.
WORDS = set(
    "and or mod if but no yes not one two six ten odd red all any may sum max min gcd lcm day men re im det arg var"
    " cov dim ker adj erf sgn lim sup inf deg".split()
)
TIMES = {r"\cdot", r"\times"}
BRACKETS = {"(": ")", "{": "}"}


class Unread(Exception):
    """The tokens are not one expression."""


def letters(parts: list[str]) -> list[str]:
    """Split runs of letters into variables, and give functions their backslash."""
    result = []
    for token in parts:
        word = token.removeprefix('"')
        if re.match("0[0-9]", word):
            raise Unread  # 2023-05-06
        if not word.isalpha() or len(word) == 1:
            result.append(word)
        elif f"\\{word}" in FUNCTIONS:
            result.append(f"\\{word}")
        elif word != token or len(word) > 3 or word in WORDS or not word.islower():
            raise Unread
        else:
            result += word
    return result


def power(base: sympy.Expr, exponent: sympy.Expr) -> sympy.Expr:
    if exponent.is_number and not abs(exponent) <= MAX_POWER:
        raise Unread
    return base**exponent


class Formula:
    """Tokens that are read from left to right."""

    def __init__(self, parts: list[str]):
        self.tokens = letters(parts)
        self.place = 0

    def read(self) -> sympy.Expr:
        value = self.sum()
        if self.place < len(self.tokens) or value.has(sympy.zoo, sympy.nan):
            raise Unread
        return value

    def peek(self) -> str | None:
        return self.tokens[self.place] if self.place < len(self.tokens) else None

    def take(self, expected: str | None = None) -> str:
        token = self.peek()
        if token is None or expected not in (None, token):
            raise Unread
        self.place += 1
        return token

    def sum(self) -> sympy.Expr:
        value = self.product()
        while self.peek() in ("+", "-"):
            minus = self.take() == "-"
            if self.peek() in ("+", "-"):
                raise Unread
            term = self.product()
            value = value - term if minus else value + term
        return value

    def product(self) -> sympy.Expr:
        value = self.signed()
        while True:
            if self.peek() in TIMES:
                if self.take() == r"\times" and (self.peek() or "").isupper():
                    raise Unread  # sets
                value *= self.signed()
            elif self.peek() == "/":
                self.take()
                value /= self.signed()
                if self.begins() or self.peek() == "/":
                    raise Unread  # 1/2x
            elif self.begins():
                value *= self.power()
            else:
                return value

    def signed(self) -> sympy.Expr:
        if self.peek() in ("+", "-"):
            minus = self.take() == "-"
            value = self.power()
            return -value if minus else value
        return self.power()

    def begins(self) -> bool:
        """Return whether another factor begins here. A number must come first."""
        token = self.peek()
        if is_number(token):
            raise Unread
        return token in ("(", "{", r"\frac", r"\sqrt") or token in FUNCTIONS or self.is_name(token)

    def is_name(self, token: str | None) -> bool:
        return token is not None and (len(token) == 1 and token.isalpha() or token in GREEK or token in CONSTANTS)

    def power(self) -> sympy.Expr:
        start = self.place
        value = self.atom()
        base = self.tokens[start : self.place]
        if self.peek() != "^":
            return value
        self.take()
        if self.peek() == r"\circ":
            self.take()
            return value * sympy.pi / 180
        named = NAMED.fullmatch(base[0])
        if named and (len(base) > 1 or not is_number(self.peek())):
            raise Unread
        value = power(value, self.exponent())
        if self.peek() == "^" or named and self.peek() == "(":
            raise Unread
        return value

    def exponent(self) -> sympy.Expr:
        if self.tokens[self.place : self.place + 2] == ["{", "("] or self.peek() == "T":
            raise Unread  # y^{(4)}, a transpose
        return self.argument()

    def argument(self, digits: int | None = None) -> sympy.Expr:
        """Read a group in braces, or one sign or number, of at most so many digits."""
        if self.peek() == "{":
            return self.atom()
        token = self.take()
        if is_number(token):
            if digits is not None and len(token) > digits:
                raise Unread
            return sympy.Rational(value_of(token))
        if not self.is_name(token):
            raise Unread
        return CONSTANTS.get(token) or sympy.Symbol(token)

    def atom(self) -> sympy.Expr:
        token = self.take()
        if is_number(token):
            if "." in token and self.tokens[self.place : self.place + 3 : 2] == ["(", ")"]:
                raise Unread  # 0.1(6)
            return self.mixed(sympy.Rational(value_of(token)))
        if token in BRACKETS:
            value = self.sum()
            self.take(BRACKETS[token])
            return value
        if token == r"\frac":
            return self.argument(1) / self.argument(1)
        if token == r"\sqrt":
            return self.root()
        if token in FUNCTIONS:
            return self.function(token)
        return self.name(token)

    def mixed(self, whole: sympy.Rational) -> sympy.Expr:
        r"""Read the fraction after an integer: `2\frac{1}{2}`."""
        if self.peek() != r"\frac":
            return whole
        part = self.atom()
        if not part.is_Rational:
            return whole * part
        if not (whole.is_Integer and 0 < part < 1):
            raise Unread
        return whole + part

    def root(self) -> sympy.Expr:
        """Read a root: the real one of odd degree of a negative number, and the principal one otherwise."""
        degree = sympy.Integer(2)
        if self.peek() == "[":
            self.take()
            degree = self.sum()
            self.take("]")
        inner = self.argument(1)
        sign = -1 if degree.is_odd and inner.is_negative else 1
        return sign * power(sign * inner, 1 / degree)

    def function(self, name: str) -> sympy.Expr:
        exponent, base = sympy.Integer(1), None
        if name == r"\log" and self.peek() == "_":
            self.take()
            base = self.argument()
        elif self.peek() == "^":
            self.take()
            exponent = self.exponent()
            if not (exponent.is_Integer and exponent > 0):
                raise Unread
        inner = self.operand()
        if name == r"\log":
            return sympy.log(inner, 10 if base is None else base)
        return FUNCTIONS[name](inner) ** exponent

    def operand(self) -> sympy.Expr:
        r"""Read the argument of a function: brackets, or a product without signs, such as `2\pi x`."""
        if self.peek() in BRACKETS:
            return self.atom()
        value = self.signed()
        while self.begins() and self.peek() not in FUNCTIONS:
            if self.peek() == "(":
                raise Unread
            value *= self.power()
        if self.peek() == "/":
            raise Unread
        return value

    def name(self, token: str) -> sympy.Expr:
        """Read a constant, or a variable and its index, which are no function of brackets that follow."""
        following = self.peek()
        if not self.is_name(token) or token == "d" and self.is_name(following) or following in ("'", "["):
            raise Unread  # dx, y', E[X]
        if token in CONSTANTS:
            return CONSTANTS[token]
        if following == "_":
            self.take()
            start = self.place
            while self.take() != "}" and self.tokens[start] == "{":
                pass
            token += "_" + "".join(self.tokens[start : self.place])
        if self.peek() == "(":
            rest = self.tokens[self.place + 2 :]
            inside = rest[: rest.index(")")] if ")" in rest else []
            if token in APPLIED or not {"+", "-"} & set(inside):
                raise Unread
        return sympy.Symbol(token)


def formula(parts: list[str]) -> sympy.Expr:
    """
    Return the value of tokens.

    Raises:
        [`Unread`]: If they are not one expression.
    """
    return Formula(parts).read()
