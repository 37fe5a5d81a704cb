r"""
Split an answer in LaTeX into tokens, and read those of one number. Equal tokens are the same answer, whatever their
spaces, fonts and braces.
"""

import re
from fractions import Fraction


# Each line: the tokens for what follows the colon.
SPELLINGS = r"""
\frac: \dfrac \tfrac \cfrac
\binom: \dbinom \tbinom
-: − – \setminus \backslash \smallsetminus
\times: × *
\cdot: ·
/: \div ÷
\pm: ±
\ge: \geq \geqslant ≥
\le: \leq \leqslant ≤
\ne: \neq ≠
<: \lt
>: \gt
\in: ∈
\cup: ∪
\infty: ∞
\{ \}: \emptyset \varnothing ∅
\pi: π
\theta: θ
\sqrt: √
\{: \lbrace
\}: \rbrace
[: \lbrack
]: \rbrack
|: \lvert \rvert \vert
^ \circ: ° \degree
^ 2: ²
^ 3: ³
\%: %
\log: \lg
\dots: \ldots \cdots \dotsc \dotsb
\pmod: \bmod \mod
': ’ ′
\times 10 ^ 3: thousand "thousand
\times 10 ^ 6: million "million
\times 10 ^ 9: billion "billion
\times 10 ^ 12: trillion "trillion
"""
ALIASES = {
    alias: name.split()
    for name, aliases in (line.split(":") for line in SPELLINGS.strip().split("\n"))
    for alias in aliases.split()
}
# A bold small letter is a vector.
FONT = re.compile(
    r"\\(?:text(?:bf|it|rm|normal)?|mathrm|mathit|mathsf|mbox|operatorname|(?:mathbf|boldsymbol)(?=\s*\{[^a-z]))"
    r"\s*\{((?:[^{}]|\{,\})*)\}"
)
LETTERS = re.compile(r'(?<![\\A-Za-z])"?([A-Za-z]+)')
# x^{2} and x_{2} are x^2 and x_2, \frac12 is \frac{1}{2}, and \sqrt2 is \sqrt{2}.
INDEX = re.compile(r'([_^])\s*\{\s*([0-9]+|[A-Za-z]|"[A-Za-z]+|\\circ)\s*\}')
FIRST = re.compile(r"(\\[dtc]?frac|\\sqrt|\\[dt]?binom|\\[pb]?mod)\s*([0-9A-Za-z])")
SECOND = re.compile(r"(\\[dtc]?(?:frac|binom)\s*\{[^{}]*\})\s*([0-9A-Za-z])")
MARK = r"(?:\{,\}|,?\\[,!])"  # between thousands; a comma alone only where it does not separate
TOKEN = r"""
    (?P<space> \s | \\[,;:!\ ] | (?<=[\w.,;)}])~ | \\q?quad(?![A-Za-z])
        | \\(?:left|right|displaystyle|[bB]igg?[lr]?)(?![A-Za-z]) | \$ | \\[()\[\]] )
    | (?P<number> (?: [0-9]{1,3}(?:(?:%s)[0-9]{3})+(?!,?[0-9]) | [0-9]+
            | (?=\.[0-9]) | (?=\.\\(?:overline|bar|dot)) )
        (?: \.[0-9]*\\(?:overline|bar|dot)\s*\{[0-9]+\} | (?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3}(?![0-9A-Za-z.]))? ) )
    | \\[A-Za-z]+ | \\. | "?[A-Za-z]+ | .
"""
OUTSIDE, INSIDE = (re.compile(TOKEN % marks, re.VERBOSE | re.DOTALL) for marks in (f",|{MARK}", MARK))
BRACKET = re.compile(r"[(\[_]|\\\{")
OPENING = {"(", "[", "{", r"\{", r"\langle", r"\begin"}
CLOSING = {")", "]", "}", r"\}", r"\rangle", r"\end"}
WORD = re.compile(r"[A-Z]?[a-z]{2,}|N[oO]|YES|TRUE|FALSE|NONE")  # whose capitals have no meaning

SIGN = "(?:([-+]) )?"
DECIMAL = r"([0-9]+(?:\.[0-9]*)?(?:e-?[0-9]+|\([0-9]+\))?)"
NUMBER = re.compile(SIGN + DECIMAL)
SCIENTIFIC = re.compile(
    rf"{SIGN}(?:{DECIMAL} \\(?:times|cdot) )?10 \^ (?:([0-9]{{1,3}})|\{{ ([-+]) ([0-9]{{1,3}}) \}})"
)
QUOTIENT = re.compile(rf"\\frac \{{ {SIGN}([0-9]+) \}} \{{ {SIGN}([0-9]+) \}}")
FRACTION = re.compile(rf"{SIGN}(?:([0-9]+) )?([-+]?[0-9]+)(?:/| / )([-+]?[0-9]+)")


def number_token(text: str) -> str:
    """Write a number without separators: `1234.5`, `1.5e-3`, and `0.1(6)` for a repeating decimal."""
    text = re.sub(rf"{MARK}|,", "", text)
    text = re.sub(r"\\(?:overline|bar|dot)\s*\{([0-9]+)\}", r"(\1)", text)
    return f"0{text}" if text.startswith(".") else text.replace("E", "e").replace("e+", "e")


def tokens(text: str) -> list[str]:
    r"""
    Return the tokens of a text. A word in a font has a quotation mark before it (`"cm` for `\text{cm}`), a command its
    backslash. Spaces, delimiters and a final full stop are left out.
    """
    text = text.replace(r"\mathbb{R}", r"(-\infty,\infty)")
    longer = None
    while longer != text:
        longer = text
        text = FONT.sub(lambda font: LETTERS.sub(r' "\1', font[1] + " "), text)
        text = INDEX.sub(r"\1\2 ", text)
    text = FIRST.sub(r"\1{\2}", text)
    text = SECOND.sub(r"\1{\2}", text)
    token = INSIDE if BRACKET.search(text) else OUTSIDE
    result = []
    for match in token.finditer(text):
        if match.lastgroup == "number":
            result.append(number_token(match.group()))
        elif match.lastgroup != "space":
            result += ALIASES.get(match.group(), [match.group()])
    if result[:1] == ["("] and result[2:4] == [")", "_"]:
        result = [result[1], *result[3:]]  # (101)_2
    return result[:-1] if result[-1:] == ["."] else result


def plain_text(parts: list[str]) -> str:
    """Return tokens as a text without fonts, and with words in lower case."""
    words = (token.removeprefix('"') for token in parts)
    return " ".join(word.lower() if WORD.fullmatch(word) else word for word in words)


def is_number(token: str | None) -> bool:
    return token is not None and token[0].isdigit()


def value_of(token: str) -> Fraction:
    """Return the value of a token such as `12.5`, `1.5e-3` or `0.1(6)`."""
    digits, _, repeated = token.rstrip(")").partition("(")
    value = Fraction(digits.replace(".e", "e").rstrip("."))
    if repeated:
        places = len(digits.partition(".")[2])
        value += Fraction(int(repeated), (10 ** len(repeated) - 1) * 10**places)
    return value


def number(parts: list[str]) -> Fraction | None:
    """
    Return the value of tokens that are one number as people write it: a decimal, a fraction that is no integer, a
    mixed number or a multiple of a power of ten. `None` for anything else, above all for a calculation.
    """
    if parts and parts[0] + parts[-1] in ("()", "{}"):
        return number(parts[1:-1])
    text = QUOTIENT.sub(r"\1\2/\3\4", " ".join(parts))
    if match := NUMBER.fullmatch(text):
        sign, value = match[1], value_of(match[2])
    elif match := SCIENTIFIC.fullmatch(text):
        sign, value = match[1], value_of(match[2] or "1") * Fraction(10) ** int("".join(match.groups("")[2:]))
    elif match := FRACTION.fullmatch(text):
        sign, whole = match[1], int(match[2] or 0)
        top, bottom = int(match[3]), int(match[4])
        if bottom == 0 or top % bottom == 0 or match[2] and not 0 < top < bottom:
            return None
        value = whole + Fraction(top, bottom)
    else:
        return None
    return -value if sign == "-" else value
