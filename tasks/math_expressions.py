r"""
Read an expression in LaTeX as a list of `math_nodes.py`. Tokens are read whole, or not at all.
"""

import re
from fractions import Fraction

from trl_prorl.tasks.math_nodes import (
    TEN,
    Tokens,
    Unread,
    is_number,
    negative,
    number,
    power,
    product,
    quotient,
    value_of,
)


MAX_DEPTH = 40
GREEK = {
    "\\" + name
    for name in """alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta kappa lambda mu nu xi rho sigma
    tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell hbar""".split()
}
CONSTANTS = {r"\pi": "pi", "e": "e", "i": "i", r"\infty": "oo"}
TRIGONOMETRIC = "sin cos tan cot sec csc sinh cosh tanh".split()
FUNCTIONS = {"\\" + name for name in (*TRIGONOMETRIC, "arcsin", "arccos", "arctan", "ln", "log", "exp")}
APPLIED = {*"fghFGHPT", r"\Gamma", r"\zeta", r"\phi", r"\varphi", r"\Phi", r"\psi", r"\Psi"}
DIFFERENCES = {"d", r"\Delta"}  # dx is one name, and so is \Delta x
# What is raised to what without being a power: derivatives f^{(n)}, inverses, transposes, complements, interiors,
# combinations C_n^k.
NO_POWER = re.compile(r"[^()]+\^[(\[].*|.+\^T|(.*[A-Z]|[fgh])(_.*)?\^(-1|c|C|H|\\circ)|[ACP]_.*\^.*", re.DOTALL)
DERIVATION = re.compile(r'\{ "?d (?:\}|\^.*\}) \{ "?d [a-zA-Z\\]')
TIMES = {"*", r"\cdot", r"\times"}
OVER = {"/", r"\div"}
PAIRS = {"(": ")", "[": "]", "{": "}", r"\{": r"\}", r"\langle": r"\rangle"}
ROUNDED = {r"\lfloor": (r"\rfloor", "floor"), r"\lceil": (r"\rceil", "ceiling")}
DEGREE = ["v", r"\circ"]


def no_numbers(node: list, sign: str) -> bool:
    """Return whether a factor is a vector, or a set or matrix before a cross: its product is another one."""
    vector = node[0] == "v" and node[1].startswith((r"\vec", r"\mathbf", r"\hat"))
    return vector or node[0] == "matrix" or (sign == r"\times" and node[0] == "v" and node[1][:1].isupper())


class Expression(Tokens):
    r"""
    Read tokens as one expression.

    Args:
        tokens (`list[str]`): the tokens, all of which must be used.
        sign (`int`): 1 or -1, what `\pm` means.
    """

    def __init__(self, tokens: list[str], sign: int = 1):
        super().__init__(tokens)
        self.sign = sign
        self.depth = 0
        self.bars = 0

    def read(self) -> list:
        node = self.sum()
        if self.place < len(self.tokens):
            raise Unread
        return node

    def sum(self) -> list:
        terms = []
        while True:
            token = self.peek()
            minus = token == "-" or (token == r"\pm" and self.sign < 0) or (token == r"\mp" and self.sign > 0)
            if token in ("+", "-", r"\pm", r"\mp"):
                self.take()
                if self.peek() in ("+", "-"):
                    raise Unread
            elif terms:
                break
            term = self.product()
            terms.append(negative(term) if minus else term)
        return terms[0] if len(terms) == 1 else ["+", *terms]

    def product(self) -> list:
        factors = [self.signed()]
        while True:
            token = self.peek()
            if token in TIMES:
                sign = self.take()
                ten = [self.peek(), self.peek(1)] == ["10", "^"]
                factor = self.signed()
                if no_numbers(factors[-1], sign) and no_numbers(factor, sign):
                    raise Unread
                if ten and factors[-1][0] == factor[0] == "n":
                    factors[-1] = number(Fraction(factors[-1][1]) * Fraction(factor[1]))
                else:
                    factors.append(factor)
            elif token in OVER:
                self.take()
                bottom = self.signed()
                if self.begins() or self.peek() in OVER:
                    raise Unread  # 1/2x
                factors = [quotient(product(factors), bottom)]
            elif self.begins():
                factors.append(self.power())
            else:
                return product(factors)

    def signed(self) -> list:
        if self.peek() in ("+", "-"):
            minus = self.take() == "-"
            if self.peek() in ("+", "-"):
                raise Unread
            node = self.power()
            return negative(node) if minus else node
        return self.power()

    def begins(self) -> bool:
        """Return whether another factor begins here. A number must come first."""
        token = self.peek()
        if token is None:
            return False
        if is_number(token):
            raise Unread
        if token == "|":
            return self.bars == 0
        return token in (
            "(",
            "{",
            "[",
            r"\frac",
            r"\sqrt",
            r"\binom",
            r"\lfloor",
            r"\lceil",
            r"\begin",
        ) or self.is_name(token)

    def is_name(self, token: str) -> bool:
        return token.lstrip('\\"')[:1].isalpha() and (
            token[0] != "\\" or token in GREEK or token in CONSTANTS or token in FUNCTIONS or token[-1] == "}"
        )

    def power(self) -> list:
        node = self.atom()
        while True:
            token = self.peek()
            if token == "!":
                self.take()
                if self.peek() == "!":
                    raise Unread
                node = ["f", "factorial", node]
            elif token == "^":
                node = self.raised(node)
                if self.peek() == "^":
                    raise Unread
            else:
                return node

    def raised(self, base: list) -> list:
        self.take("^")
        name = base[1] if base[0] in ("v", "apply") else ""
        if name in APPLIED and self.tokens[self.place + 1 : self.place + 2] == ["("]:
            raise Unread  # f^2(x)
        if name == "" and base[0] not in ("n", "c"):
            name = "()"
        exponent = self.exponent(name)
        if exponent == DEGREE and base[0] != "matrix":
            return ["f", "degree", base]
        return power(base, exponent)

    def exponent(self, base: str) -> list:
        """Read the exponent of a variable, a function or, without a name, of a number."""
        place = self.place
        in_braces = self.peek() == "{"
        mark = self.peek(in_braces)
        if mark == r"\circ":
            self.place += 3 if in_braces else 1
            node = DEGREE
        else:
            node = self.argument(whole=True)
        spelled = self.tokens[place : self.place]
        if spelled[0] == "{":
            spelled = spelled[1:-1]
        if NO_POWER.fullmatch(f"{base}^{''.join(spelled)}"):
            raise Unread
        return node

    def argument(self, whole: bool = False) -> list:
        r"""Read the argument of `\frac`, `\sqrt` or `^`: a group, or one sign, which is one digit unless `whole`."""
        if self.peek() == "{":
            return self.group("{")
        if whole and self.peek() == "-" and is_number(self.peek(1)):
            self.take()
            return negative(number(value_of(self.take())))
        token = self.peek()
        if is_number(token):
            self.take()
            if whole or len(token) == 1:
                return number(value_of(token))
            if not token.isdigit():
                raise Unread
            self.place -= 1
            self.tokens = [*self.tokens[: self.place], token[1:], *self.tokens[self.place + 1 :]]
            return number(Fraction(token[0]))
        if token in ("(", "|", r"\binom"):
            raise Unread
        return self.atom(lone=True)

    def group(self, opening: str) -> list:
        place = self.place
        self.take(opening)
        bars, self.bars = self.bars, 0
        node = self.sum()
        self.bars = bars
        self.take(PAIRS[opening])
        if opening == "[" and node[0] != "array" and "(" not in self.tokens[place : self.place]:
            raise Unread  # [x/2] may be the integer part
        return ["matrix", node[1]] if node[0] == "array" and opening == "[" else node

    def atom(self, lone: bool = False) -> list:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unread
        node = self.atom_within(lone)
        self.depth -= 1
        return node

    def atom_within(self, lone: bool) -> list:
        token = self.peek()
        if is_number(token):
            return self.mixed()
        if token == "(":
            return self.bracketed()
        if token in ("{", "["):
            return self.group(token)
        self.take()
        if token == "|":
            self.bars += 1
            node = self.sum()
            self.take("|")
            self.bars -= 1
            return ["f", "abs", node]
        if token in ROUNDED:
            closing, name = ROUNDED[token]
            node = self.sum()
            self.take(closing)
            return ["f", name, node]
        if token == r"\begin":
            return self.matrix()
        if token == r"\frac":
            return self.fraction()
        if token == r"\sqrt":
            degree = ["n", "2"]
            if self.peek() == "[":
                self.take()
                degree = self.sum()
                self.take("]")
            return ["f", "root", self.argument(), degree]
        if token == r"\binom":
            return ["f", "binomial", self.argument(), self.argument()]
        if "\\" + token.lstrip('"\\') in FUNCTIONS:
            return self.function("\\" + token.lstrip('"\\'))
        if token in CONSTANTS or token in ('"e', '"i'):
            return ["c", CONSTANTS[token.removeprefix('"')]]
        return self.name(token, lone)

    def bracketed(self) -> list:
        self.take("(")
        bars, self.bars = self.bars, 0
        node = self.sum()
        self.take(")")
        self.bars = bars
        return ["matrix", node[1]] if node[0] == "array" else node

    def mixed(self) -> list:
        r"""Read a number, and the fraction after an integer: `2\frac{1}{2}`, `2 1/2`."""
        token = self.take()
        whole = number(value_of(token))
        if "." in token and self.peek() == "(" and is_number(self.peek(1)) and self.peek(2) == ")":
            raise Unread  # 0.1(6)
        if not token.isdigit() or self.peek() not in (r"\frac",) and not is_number(self.peek()):
            return whole
        place, kept = self.place, self.tokens
        if self.take() == r"\frac":
            part = self.fraction()
        elif self.peek() == "/" and is_number(self.peek(1)):
            part = quotient(number(value_of(self.peek(-1))), number(value_of(self.peek(1))))
            self.place += 2
        else:
            raise Unread
        if part[0] == "n" and 0 < Fraction(part[1]) < 1:
            return number(Fraction(whole[1]) + Fraction(part[1]))
        if part[0] == "n" or part[0] == "/" and part[1][0] == part[2][0] == "n":
            raise Unread
        self.place, self.tokens = place, kept
        return whole

    def fraction(self) -> list:
        r"""Read the arguments of `\frac`, unless it stands for a derivation: d/dx, d²y/dx²."""
        place = self.place
        top, bottom = self.argument(), self.argument()
        if DERIVATION.match(" ".join(self.tokens[place : self.place])):
            raise Unread
        return quotient(top, bottom)

    def function(self, name: str) -> list:
        exponent, base = None, None
        for _ in range(2):
            if self.peek() == "^" and exponent is None:
                self.take()
                exponent = self.exponent(name)
            elif self.peek() == "_" and base is None and name == r"\log":
                self.take()
                base = self.argument(whole=True)
        name = name[1:]
        if exponent == DEGREE:
            raise Unread
        if exponent == ["n", "-1"]:
            if name not in TRIGONOMETRIC[:3]:
                raise Unread
            name, exponent = f"arc{name}", None
        inner = self.operand()
        if name == "log":
            node = ["f", "log", inner, base or TEN]
        else:
            node = ["f", name, inner]
        return node if exponent is None else power(node, exponent)

    def operand(self) -> list:
        r"""Read the argument of a function: brackets, or a product without signs, such as `2\pi x`."""
        if self.peek() in ("(", "|"):
            return self.atom()
        if self.peek() == "{":
            return self.group("{")
        factors = [self.signed()]
        while self.begins() and self.peek() not in FUNCTIONS:
            if self.peek() in ("(", "[", "|"):
                raise Unread
            factors.append(self.power())
        if self.peek() in OVER:
            raise Unread
        return product(factors)

    def name(self, token: str, lone: bool) -> list:
        """Read a variable with its marks and index, or a function of which only the name is known."""
        name = token.removeprefix('"')
        if not (len(name) == 1 and name.isalpha() or token in GREEK or token[-1] == "}" or name.isupper()):
            raise Unread
        if token in ("}", r"\}") or name.isupper() and not name.isalpha():
            raise Unread
        if lone:
            return ["v", name]
        known_function = name in APPLIED
        following = (self.peek() or "").removeprefix('"')
        if name in DIFFERENCES and (len(following) == 1 and following.isalpha() or following in GREEK):
            self.take()
            name += following
        while self.peek() == "'":
            name += self.take()
        if self.peek() == "_":
            self.take()
            place = self.place
            if self.peek() == "{":
                self.close()
            else:
                self.take()
            index = [part.removeprefix('"') for part in self.tokens[place : self.place]]
            name += "_" + "".join(index).strip("{}")
        while self.peek() == "'":
            name += self.take()
        if self.tokens[self.place : self.place + 6] == ["^", "{", "-", "1", "}", "("] and known_function:
            self.place += 5
            name += "^{-1}"
        if self.peek() == "[":
            raise Unread  # E[X]
        if self.peek() == "(" and (known_function or "'" in name or not self.has_sum()):
            return self.applied(name)
        return ["v", name]

    def applied(self, name: str) -> list:
        self.take("(")
        inner = [self.sum()]
        while self.peek() == ",":
            self.take()
            inner.append(self.sum())
        self.take(")")
        return ["apply", name, *inner]

    def matrix(self) -> list:
        """Read the rows of a matrix, after its `\\begin`."""
        kind = self.environment()
        place = self.place
        if kind == "array" and self.peek() == "{":
            self.close()
        if "|" in self.tokens[place : self.place]:
            raise Unread
        rows = [[]]
        while True:
            rows[-1].append(self.sum())
            token = self.take()
            if token == r"\\" and self.peek() != r"\end":
                rows.append([])
            elif token == r"\end" or token == r"\\":
                if token == r"\\":
                    self.take(r"\end")
                break
            elif token != "&":
                raise Unread
        if self.environment() != kind or len({len(row) for row in rows}) > 1:
            raise Unread
        return ["matrix" if kind in ("pmatrix", "bmatrix") else "array", rows]

    def environment(self) -> str:
        self.take("{")
        name = self.take().removeprefix('"')
        self.take("}")
        if name not in ("pmatrix", "bmatrix", "matrix", "smallmatrix", "array"):
            raise Unread
        return name


def expression(found: list[str], sign: int = 1) -> list:
    node = Expression(found, sign).read()
    if node[0] == "array":
        raise Unread
    return node
