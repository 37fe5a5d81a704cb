r"""
Read an answer in LaTeX as a value of a known class. A text is read whole, or not at all.

Values are lists, which JSON can hold; the first item says what it is:

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
| `["mod", name, modulus, …]`, `["ratio", …]`, `["base", digits, base]` | congruences, `2:3`, `101_2` |
"""

import re
from fractions import Fraction

from trl_prorl.tasks.latex import CLOSING, OPENING, tokens
from trl_prorl.tasks.units import CURRENCIES, PERCENT, SCALES, known, unit


MAX_LENGTH = 1000  # characters
MAX_DEPTH = 40
NUMBER = re.compile(r"[0-9]")
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
NO_POWER = re.compile(
    r"[^()]+\^[(\[].*|.+\^(T|\\top)|(.*[A-Z]|[fgh])(_.*)?\^(-1|c|C|H|\\circ)|[ACP]_.*\^.*", re.DOTALL
)
DERIVATION = re.compile(r'\{ "?d (?:\}|\^.*\}) \{ "?d [a-zA-Z\\]')
TIMES = {"*", r"\cdot", r"\times"}
OVER = {"/", r"\div"}
ORDER = {"<", ">", r"\le", r"\ge", r"\ne"}
RELATIONS = ORDER | {"=", r"\in", r"\equiv"}
SET_OPERATIONS = {r"\cup", r"\cap", r"\setminus"}
JOINTS = {",": ",", ";": ",", '"and': "and", '"or': "or"}
PAIRS = {"(": ")", "[": "]", "{": "}", r"\{": r"\}", r"\langle": r"\rangle"}
ROUNDED = {r"\lfloor": (r"\rfloor", "floor"), r"\lceil": (r"\rceil", "ceiling")}
TEMPERATURES = {"coulomb": "celsius", "farad": "fahrenheit"}  # letters after a degree sign
DEGREE = ["v", r"\circ"]
ZERO, TEN = ["n", "0"], ["n", "10"]
# What ordinary words mean in a run of letters; other runs of up to three are products.
PLAIN_WORDS = set(
    "and or mod if but no yes not one two six ten odd red all any may sum max min gcd lcm day men re im det arg var"
    " cov dim ker adj erf sgn lim sup inf deg".split()
)
RUN = re.compile(r"[A-Z]{2,}|[A-Za-z]")
LONG_WORD = re.compile(r"[a-z]{4,}|[A-Z][a-z]{2,}")
DATE = re.compile(r"[0-9]{1,4}([-/])[0-9]{1,2}\1[0-9]{1,4}")
TIME = re.compile(r"[0-9]{1,2}:[0-9]{2}")
BASE = re.compile(r"\(?([0-9A-F]+)\)?_(?:\{?([0-9]{1,2})\}?|\{?([a-z]{3,})\}?)")
BASES = dict(zip("two three four five six seven eight nine ten eleven twelve".split(), range(2, 13), strict=True))
BASES |= {"binary": 2, "octal": 8, "decimal": 10, "sixteen": 16, "hex": 16}
WRAPPED = re.compile(r"\\(?:text|mathrm|textbf|mathbf)\s*|\\[,;: ]|\\(?:left|right)(?![A-Za-z])|\s|\$|\.$")
# What may be before an equals sign: x, x_1, AB, f(2), f'(x), \angle ABC, \text{Area}, dy/dx.
NAME = re.compile(
    r"""(?:\\(?:angle|triangle)\ )?
    (?: (?:"[A-Za-z]+\ ?)+ | \\frac\ \{\ d\ \w+\ \}\ \{\ d\ \w+\ \} | (?:\\?[A-Za-z]+(?:\{\\?\w+\})?)(?:\ ')*
        (?:\ _\ (?:\w+|\{[^{}]*\}))? (?:\ \^\ \{\ -\ 1\ \})? (?:\ \(\ [\w ,.=<>\\]+\ \))? )""",
    re.VERBOSE,
)


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
    if node[0] in ("n", "10^"):
        return [node[0], str(-Fraction(node[1]))]
    return ["-", node]


def power(base: list, exponent: list) -> list:
    if base == TEN and is_whole(exponent) and abs(int(exponent[1])) < 1000:
        return ["10^", str(Fraction(10) ** int(exponent[1]))]
    return ["^", base, exponent]


def product(factors: list[list]) -> list:
    return factors[0] if len(factors) == 1 else ["*", *factors]


def settled(node: list) -> list:
    """Return an expression in which a power of ten is a number like any other."""
    if node[0] == "10^":
        return ["n", node[1]]
    return [settled(part) if isinstance(part, list) else part for part in node]


def no_numbers(node: list, sign: str) -> bool:
    """Return whether a factor is a vector, or a set or matrix with a cross after it, whose product is another one."""
    vector = node[0] == "v" and node[1].startswith((r"\vec", r"\mathbf", r"\hat"))
    return vector or node[0] == "matrix" or (sign == r"\times" and node[0] == "v" and node[1][:1].isupper())


class Expression:
    r"""
    Read tokens as one expression.

    Args:
        tokens (`list[str]`): the tokens, all of which must be used.
        sign (`int`): 1 or -1, what `\pm` means.
    """

    def __init__(self, tokens: list[str], sign: int = 1):
        self.tokens = tokens
        self.sign = sign
        self.place = 0
        self.depth = 0
        self.bars = 0

    def read(self) -> list:
        node = self.sum()
        if self.place < len(self.tokens):
            raise Unread
        return settled(node)

    def peek(self, ahead: int = 0) -> str | None:
        place = self.place + ahead
        return self.tokens[place] if place < len(self.tokens) else None

    def take(self, expected: str | None = None) -> str:
        token = self.peek()
        if token is None or expected not in (None, token):
            raise Unread
        self.place += 1
        return token

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
                factor = self.signed()
                if no_numbers(factors[-1], sign) and no_numbers(factor, sign):
                    raise Unread
                both = [factors[-1][0], factor[0]]
                if both == ["n", "10^"]:
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
        if name == "" and base[0] not in ("n", "c", "matrix"):
            name = "()"
        exponent = self.exponent(name)
        if exponent == DEGREE and base[0] != "matrix":
            return ["f", "degree", base]
        if base[0] == "matrix" and exponent in (["v", "T"], ["v", r"\top"]):
            return ["matrix", [list(row) for row in zip(*base[1], strict=True)]]
        return power(base, exponent)

    def exponent(self, base: str) -> list:
        """Read the exponent of a variable, a function or, without a name, of a number."""
        place = self.place
        in_braces = self.peek() == "{"
        mark = self.peek(in_braces)
        if mark in (r"\circ", r"\top"):
            self.place += 3 if in_braces else 1
            node = ["v", mark]
        else:
            node = self.argument(whole=True)
        spelled = self.tokens[place : self.place]
        if spelled[0] == "{":
            spelled = spelled[1:-1]
        if NO_POWER.fullmatch(f"{base}^{''.join(spelled)}"):
            raise Unread
        return node

    def argument(self, whole: bool = False) -> list:
        r"""Read what `\frac`, `\sqrt` or `^` takes: a group, or one sign, which is one digit unless `whole`."""
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

    def degree(self) -> list:
        self.take("[")
        node = self.sum()
        self.take("]")
        return node

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
            degree = self.degree() if self.peek() == "[" else ["n", "2"]
            return ["f", "root", self.argument(), degree]
        if token == r"\binom":
            return ["f", "binomial", self.argument(), self.argument()]
        if token.lstrip('"\\') in ("exp", *TRIGONOMETRIC) or "\\" + token.lstrip('"\\') in FUNCTIONS:
            return self.function("\\" + token.lstrip('"\\'))
        if token in CONSTANTS or token in ('"e', '"i'):
            return ["c", CONSTANTS[token.removeprefix('"')]]
        return self.name(token, lone)

    def bracketed(self) -> list:
        """Read brackets around an expression, or around a row that is transposed."""
        self.take("(")
        bars, self.bars = self.bars, 0
        row = [self.sum()]
        while self.peek() == ",":
            self.take()
            row.append(self.sum())
        self.take(")")
        self.bars = bars
        if len(row) == 1:
            return ["matrix", row[0][1]] if row[0][0] == "array" else row[0]
        if self.peek() != "^":
            raise Unread
        return ["matrix", [row]]

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
        r"""Read what a function is applied to: brackets, or a product without signs, such as `2\pi x`."""
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

    def close(self) -> None:
        """Go to the end of a group."""
        depth = 0
        while True:
            token = self.take()
            depth += (token in OPENING) - (token in CLOSING)
            if depth == 0:
                return

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


def split(found: list[str], signs: set[str] | dict) -> tuple[list[list[str]], list[str]]:
    """Return the parts between the signs outside all brackets, and the signs."""
    parts, between, depth = [[]], [], 0
    for token in found:
        depth += (token in OPENING) - (token in CLOSING)
        if depth < 0:
            raise Unread
        if depth == 0 and token in signs:
            between.append(token)
            parts.append([])
        else:
            parts[-1].append(token)
    return parts, between


def runs(found: list[str]) -> list[str]:
    """Split runs of letters into variables. Words, names like AB and units after a number stay whole."""
    result = []
    in_unit = False
    for place, token in enumerate(found):
        before = found[place - 1] if place else None
        if not token.isalpha() or not token.isascii():
            result.append(token)
            in_unit = in_unit and token in ("/", "^", "2", "3", "{", "}", ".", "-") or token.startswith('"')
        elif (is_number(before) or in_unit) and len(token) > 1 and known(token) or in_unit:
            result.append(f'"{token}')
            in_unit = True
        elif "\\" + token in FUNCTIONS:
            result.append("\\" + token)
        elif token.lower() in PLAIN_WORDS or LONG_WORD.fullmatch(token):
            result.append(f'"{token}')
            in_unit = known(token) is not None
        else:
            result += (
                RUN.findall(token) if before != r"\begin" and found[place - 2 : place - 1] != [r"\begin"] else [token]
            )
    return result


def outward(found: list[str]) -> list[str]:
    """Write `]0,1[` with round brackets."""
    found = list(found)
    depth = 0
    for place, token in enumerate(found):
        following = found[place + 1] if place + 1 < len(found) else None
        if token == "]" and depth == 0:
            token = found[place] = "("
        elif token == "[" and depth == 1 and following in (None, r"\cup", r"\cap"):
            token = found[place] = ")"
        depth += (token in OPENING) - (token in CLOSING)
    return found


def name_of(found: list[str]) -> str | None:
    text = " ".join(found)
    if NAME.fullmatch(text) is None or found[0] in FUNCTIONS or text in (r"\pi", r"\infty"):
        return None
    return text.replace('"', "").replace("{ ", "").replace(" }", "").replace(" ", "")


def expression(found: list[str], sign: int = 1) -> list:
    node = Expression(found, sign).read()
    if node[0] == "array":
        raise Unread
    return node


def read(text: str) -> list:
    """
    Read an answer.

    Raises:
        [`Unread`]: If it is longer than 1,000 characters, or not one answer of a known class.
    """
    if len(text) > MAX_LENGTH:
        raise Unread
    bare = WRAPPED.sub("", text)
    base = BASE.fullmatch(re.sub(r"\{([^{}]*)\}(?=.)", r"\1", bare))
    if base is not None and has_base(*base.groups()):
        return base_number(*base.groups())
    if DATE.fullmatch(bare) or TIME.fullmatch(bare):
        raise Unread
    found = outward(runs(tokens(text)))
    numbers = [token for token in found if is_number(token)]
    if len(numbers) > 1 and any(re.match("0[0-9]", token) for token in numbers):
        raise Unread
    return answer(found)


def has_base(digits: str, base: str | None, word: str | None) -> bool:
    size = int(base) if base else BASES.get(word, 0)
    return 2 <= size <= 36 and all(int(digit, 36) < size for digit in digits)


def base_number(digits: str, base: str | None, word: str | None) -> list:
    size = int(base) if base else BASES[word]
    return ["n", digits] if size == 10 else ["base", digits, size]


def answer(found: list[str]) -> list:
    """Read one or several answers."""
    if [token.removeprefix('"') for token in found[:4]] == [r"\begin", "{", "cases", "}"] and "&" not in found:
        lines, _ = split(found[4:-4], {r"\\", ","})
        return ["list", "and", *(item(line, 1) for line in lines if line)]
    if r"\equiv" in found or r"\pmod" in found or r"\mod" in found or '"mod' in found:
        return congruence(found)
    parts, joints = split(found, JOINTS)
    joint = {JOINTS[sign] for sign in joints}
    values = []
    for place, part in enumerate(parts):
        if part:
            values += [item(part, sign) for sign in signs(part)]
        elif place in (0, len(parts) - 1) or joints[place] not in ('"and', '"or'):
            raise Unread
    if len(values) == 1:
        return values[0]
    words = joint - {","}
    if len(words) > 1:
        raise Unread
    first = values[0]
    if first[0] == "named" and all(value[0] not in ("named", "=", "order", "in", "list") for value in values[1:]):
        values = [first, *(["named", first[1], value, None] for value in values[1:])]
    return ["list", words.pop() if words else ",", *values]


def signs(found: list[str]) -> tuple[int, ...]:
    r"""Return what `\pm` stands for in an answer: both signs, if it has one."""
    count = found.count(r"\pm")
    if count + found.count(r"\mp") == 0 or found[0] == r"\{":
        return (1,)
    if count != 1:
        raise Unread
    return (1, -1)


def congruence(found: list[str]) -> list:
    """Read `x ≡ 1, 3 (mod 8)`."""
    place = next((n for n, token in enumerate(found) if token in (r"\pmod", r"\mod", '"mod')), None)
    if place is None:
        raise Unread
    left, modulus = found[:place], found[place + 1 :]
    if left and left[-1] == "(" and modulus and modulus[-1] == ")":
        left, modulus = left[:-1], modulus[:-1]
    sides, relations = split(left, {r"\equiv"})
    name = name_of(sides[0]) if relations else None
    if len(relations) > 1 or relations and name is None or not all(sides):
        raise Unread
    residues, _ = split(sides[-1], {",", '"or'})
    return ["mod", name, expression(modulus), *(expression(part, sign) for part in residues for sign in signs(part))]


def item(found: list[str], sign: int) -> list:
    """Read one answer: a statement or a value."""
    sides, relations = split(found, RELATIONS)
    if not relations:
        return value(found, sign)
    if not all(sides):
        raise Unread
    if relations == ["="]:
        return equation(*sides, sign)
    if relations == [r"\in"]:
        return membership(*sides)
    if set(relations) <= ORDER:
        return ["order", relations, *(expression(side, sign) for side in sides)]
    raise Unread


def membership(left: list[str], right: list[str]) -> list:
    name = name_of(left)
    if name is None:
        raise Unread
    if right[0] in (r"\mathbb{Z}", r"\mathbb{N}", r"\mathbb{Q}", r"\mathbb{C}") or right[
        0
    ] == r"\mathbb{R}" != "".join(right):
        return ["in", name, "".join(right).replace("{+}", "+")]
    inner = value(right)
    if inner[0] not in ("reals", "seq", "set", *SET_OPERATIONS):
        raise Unread
    return ["named", name, inner, None]


def equation(left: list[str], right: list[str], sign: int) -> list:
    if name_of(left) is None and name_of(right) is not None:
        left, right = right, left
    name = name_of(left)
    if name is None:
        return named_tuple(left, right) or ["=", expression(left, sign), expression(right, sign)]
    try:
        both = ["=", expression(left, sign), expression(right, sign)]
    except Unread:
        both = None
    if both is not None and contains(both[2], both[1]):
        return both
    return ["named", name, value(right, sign), both]


def named_tuple(left: list[str], right: list[str]) -> list | None:
    """Read `(x,y)=(4,-1)`."""
    if left[0] != "(" or not is_enclosed(left):
        return None
    names = [name_of(part) for part in split(left[1:-1], {","})[0] if part]
    values = value(right)
    if None in names or values[:2] != ["seq", "()"] or len(values) != len(names) + 2:
        return None
    return ["list", "()", *(["named", name, value, None] for name, value in zip(names, values[2:], strict=True))]


def contains(node: list, part: list) -> bool:
    return node == part or any(isinstance(inner, list) and contains(inner, part) for inner in node)


def value(found: list[str], sign: int = 1) -> list:
    """Read a value that is no statement."""
    if found == [r"\mathbb{R}"] or [token.lower() for token in found] in (
        ['"all', '"real', '"numbers'],
        ['"all', '"reals'],
    ):
        return ["reals"]
    if found == [r"\emptyset"]:
        return ["set"]
    parts, operations = split(found, SET_OPERATIONS)
    if not operations and found[:2] == [r"\mathbb{R}", "-"]:
        parts, operations = [found[:1], found[2:]], [r"\setminus"]
    if operations:
        if len(set(operations)) > 1 or not all(parts):
            raise Unread
        node = value(parts[0])
        for operation, part in zip(operations, parts[1:], strict=True):
            node = [operation, node, value(part)]
        return node
    node = enclosed(found, sign)
    if node is not None:
        return node
    parts, colons = split(found, {":"})
    if colons:
        return ["ratio", *(expression(part) for part in parts)]
    return quantity(found, sign)


def is_enclosed(found: list[str]) -> bool:
    """Return whether the first bracket closes at the end, unlike in (1)(2)."""
    depth = 0
    for token in found[:-1]:
        depth += (token in OPENING) - (token in CLOSING)
        if depth < 1:
            return False
    return depth == 1 and found[-1] in CLOSING


def enclosed(found: list[str], sign: int) -> list | None:
    """Read what is in one pair of brackets with commas: tuple, vector, interval or set. `None` for anything else."""
    opening, closing, inside = found[0], found[-1], found[1:-1]
    if opening not in ("(", "[", r"\{", r"\langle") or closing not in (")", "]", r"\}", r"\rangle"):
        return None
    if not is_enclosed(found):
        return None
    if not inside and opening != r"\{":
        raise Unread
    parts, _ = split(inside, {",", ";"})
    if opening == r"\{":
        return set_of(inside, closing)
    if len(parts) == 1 and closing == PAIRS[opening]:
        return value(inside, sign) if opening == "(" and inside[0] != r"\begin" else None
    if closing != PAIRS[opening] and (len(parts) != 2 or {opening, closing} - set("()[]")):
        raise Unread
    if not all(parts):
        raise Unread
    brackets = (opening + closing).replace(r"\langle\rangle", "<>")
    values = [value(part, sign) for part in parts]
    ends = {place for place, node in enumerate(values) if node in (["c", "oo"], ["-", ["c", "oo"]])}
    if any(brackets[place] in "[]" for place in ends if place < len(brackets)):
        raise Unread
    return ["seq", brackets, *values]


def set_of(inside: list[str], closing: str) -> list:
    if closing != r"\}":
        raise Unread
    if not inside:
        return ["set"]
    parts, bars = split(inside, {r"\mid", "|", ":"})
    if len(bars) == 1:
        condition = answer(parts[1])
        name = parts[0][:-2] if parts[0][-2:] == [r"\in", r"\mathbb{R}"] else parts[0]
        if condition[0] not in ("order", "list") or not name or name_of(name) is None:
            raise Unread
        return condition if condition[0] == "order" else ["list", "and", *condition[2:]]
    elements = []
    for part in split(inside, {",", ";"})[0]:
        if not part:
            raise Unread
        elements += [value(part, sign) for sign in signs(part)]
    return ["set", *elements]


def is_degrees(node: list) -> bool:
    return node[:2] == ["f", "degree"]


def suffix(found: list[str]) -> tuple[int, int, tuple[Fraction, dict[str, int]]]:
    """Return where a scale (`million`) and a unit begin, the scale, and the unit; the end if there is none."""
    for start in range(1, len(found)):
        if found[start].startswith('"'):
            scale = SCALES.get(found[start][1:], 1)
            rest = found[start + (scale > 1) :]
            named = unit(rest) if rest else (Fraction(1), {})
            if named is not None:
                return start, scale, named
    return len(found), 1, (Fraction(1), {})


def compound(found: list[str]) -> list[list[str]]:
    """Return the pieces of `2 hours 30 minutes`, each with a number at its beginning."""
    pieces = [[]]
    for place, token in enumerate(found):
        if is_number(token) and place and found[place - 1].startswith('"'):
            pieces.append([])
        pieces[-1].append(token)
    return pieces


def total(pieces: list[list]) -> list:
    if any(piece[0] != "q" or piece[1][0] != "n" or piece[3] != pieces[0][3] for piece in pieces):
        raise Unread
    return ["q", number(sum(Fraction(piece[1][1]) * Fraction(piece[2]) for piece in pieces)), "1", pieces[0][3], "sum"]


def quantity(found: list[str], sign: int) -> list:
    """Read an expression, with its currency, unit or percent sign."""
    money = next((token for token in found[:2] if token in CURRENCIES), None)
    if money is not None:
        found = [token for token in found if token != money]
    if not found:
        raise Unread
    if found[-1] in PERCENT and money is None:
        return ["%", expression(found[:-1], sign)]
    pieces = compound(found)
    if len(pieces) > 1:
        return total([quantity(piece, sign) for piece in pieces])
    place, scale, (size, powers) = suffix(found)
    node = expression(found[:place], sign)
    if is_degrees(node) or node[0] == "-" and is_degrees(node[1]):
        node = negative(node[1][2]) if node[0] == "-" else node[2]
        powers = {"angle": 1} | {TEMPERATURES.get(name, name): power for name, power in powers.items()}
    if scale > 1:
        node = number(Fraction(node[1]) * scale) if node[0] == "n" else ["*", node, ["n", str(scale)]]
    if money is not None:
        powers = {**powers, CURRENCIES[money]: powers.get(CURRENCIES[money], 0) or 1}
    return ["q", node, str(size), sorted(map(list, powers.items()))] if powers else node
