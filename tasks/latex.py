"""Split an answer in LaTeX into tokens. Equal tokens are the same text, apart from spaces, fonts and braces."""

import re


ALIASES = {
    alias: name
    for name, aliases in {
        r"\frac": "dfrac tfrac cfrac",
        r"\binom": "dbinom tbinom",
        r"\ge": "geq geqslant",
        r"\le": "leq leqslant",
        r"\ne": "neq",
        "<": "lt",
        ">": "gt",
        r"\emptyset": "varnothing",
        r"\{": "lbrace",
        r"\}": "rbrace",
        "[": "lbrack",
        "]": "rbrack",
        "|": "lvert rvert vert",
        r"\|": "lVert rVert Vert",
        r"\dots": "ldots cdots dotsc dotsb",
        r"\setminus": "backslash smallsetminus",
        r"\mod": "bmod",
        r"\log": "lg",
        r"\tan": "tg",
        r"\cot": "ctg",
        r"\to": "rightarrow",
        r"\top": "intercal",
    }.items()
    for alias in aliases.split()
}
UNICODE = str.maketrans(
    {
        "−": "-",
        "–": "-",
        "×": r"\times ",
        "·": r"\cdot ",
        "÷": r"\div ",
        "π": r"\pi ",
        "θ": r"\theta ",
        "√": r"\sqrt ",
        "∞": r"\infty ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "≠": r"\ne ",
        "±": r"\pm ",
        "∪": r"\cup ",
        "∩": r"\cap ",
        "∈": r"\in ",
        "∅": r"\emptyset ",
        "ℝ": r"\mathbb{R}",
        "°": r"^\circ ",
        "²": "^2",
        "³": "^3",
        "’": "'",
        "′": "'",
    }
)
# Thousands separators. A plain comma separates thousands outside brackets alone: (1,234) is a pair.
MARKED = r"(?:\{,\}|,\\!|\\[,!]|~)"
WHOLE = rf"[0-9]{{1,3}}(?:{MARKED}[0-9]{{3}})+(?![0-9])|[0-9]+"
WHOLE_OUTSIDE = rf"[0-9]{{1,3}}(?:(?:,|{MARKED})[0-9]{{3}})+(?!,?[0-9])|{WHOLE}"
REPEATED = r"\\(?:overline|bar)\s*(?:\{[0-9]+\}|[0-9])|\\dot\s*(?:\{[0-9]\}|[0-9])"
EXPONENT = r"[eE][-+]?[0-9]{1,3}(?![0-9A-Za-z.])"
FONT = r"text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mathsf|boldsymbol|mbox|operatorname|rm|bf"
# With one name these are names themselves; the last four only with a small letter.
ACCENT = r"vec|hat|bar|overline|dot|ddot|tilde|widehat|overrightarrow|mathbb|mathcal"
TOKEN = r"""
    (?P<space> \s | \\[,;:!\ ] | (?<=[\w.,;)}])~ | \\q?quad(?![A-Za-z])
        | \\(?:left|right|displaystyle|[bB]igg?[lr]?)(?![A-Za-z])
        | \$ | \\[()\[\]] )
    | (?P<number> (?:(?:%s)?\.[0-9]*(?:%s) | (?:%s)(?:\.[0-9]+)? | \.[0-9]+) (?:%s)? )
    | (?P<accent> \\(?:%s)(?![A-Za-z]) \s* (?:\{\s*\\?[A-Za-z]+\s*\} | \\[A-Za-z]+ | [A-Za-z])
        | \\(?:mathbf|boldsymbol|bm) \s* \{\s*[a-z]\s*\} )
    | (?P<font> \\(?:%s)(?![A-Za-z]) \s* )
    | (?P<command> \\[A-Za-z]+ | \\. )
    | (?P<word> [A-Za-z]+ )
    | (?P<other> . )
"""
OUTSIDE, INSIDE = (
    re.compile(TOKEN % (whole, REPEATED, whole, EXPONENT, ACCENT, FONT), re.VERBOSE | re.DOTALL)
    for whole in (WHOLE_OUTSIDE, WHOLE)
)
ACCENTED = re.compile(r"\\([A-Za-z]+?)\s*(?:\{\s*(.*?)\s*\}|(?<=\s)([A-Za-z])|(\\[A-Za-z]+))", re.DOTALL)
SAME_ACCENT = {"overline": "bar", "overrightarrow": "vec", "boldsymbol": "mathbf", "bm": "mathbf"}
OPENING = {"(", "[", "{", r"\{", r"\langle", r"\lfloor", r"\lceil", r"\begin"}
CLOSING = {")", "]", "}", r"\}", r"\rangle", r"\rfloor", r"\rceil", r"\end"}
BRACKETS = OPENING | CLOSING
# A word with capitals that have no meaning, as opposed to names like AB.
WORD = re.compile(r"[A-Z]?[a-z]{2,}|YES|NO|TRUE|FALSE|NONE")


def number_token(text: str) -> str:
    """Write a number without separators: `1234.5`, `1.5e-3`, and `0.1(6)` for a repeating decimal."""
    repeated = re.search(REPEATED, text)
    if repeated is not None:
        digits = re.sub("[^0-9]", "", repeated.group())
        return f"{number_token(text[: repeated.start()])}({digits}){text[repeated.end() :]}"
    text = re.sub(MARKED, "", text).replace(",", "")
    return f"0{text}" if text.startswith(".") else text.replace("E", "e")


def tokens(text: str) -> list[str]:
    r"""
    Return the tokens of a text. A word in a font has a quotation mark before it (`"cm` for `\text{cm}`), a command its
    backslash, and a name with an accent is one token (`\vec{v}`). Spaces, delimiters and a final full stop are left
    out.
    """
    text = re.sub(r"(?<![\^_])\{([-+])\}", r"\1", text.translate(UNICODE))
    found: list[str] = []
    braces: list[str] = []  # "{", "_" for the brace of an index, or "" for that of a font
    depth = 0
    place = 0
    while place < len(text):
        match = (INSIDE if depth or "_" in braces else OUTSIDE).match(text, place)
        place = match.end()
        kind, token = match.lastgroup, match.group().strip()
        if kind == "space":
            continue
        if kind == "number":
            token = number_token(match.group())
        elif kind == "accent":
            command, *names = ACCENTED.fullmatch(token).groups("")
            token = f"\\{SAME_ACCENT.get(command, command)}{{{''.join(names)}}}"
        elif kind == "font":
            if text[place : place + 1] == "{":
                braces.append("")
                place += 1
            continue
        elif kind == "command":
            token = ALIASES.get(token[1:], token)
        elif kind == "word" and "" in braces:
            token = '"' + token
        elif token == "{":
            braces.append("_" if found[-1:] == ["_"] else "{")
        elif token == "}" and braces and braces.pop() == "":
            continue
        if token in BRACKETS and token not in "{}":
            depth += 1 if token in OPENING else -1
        found.append(token)
    if found[-1:] == ["."]:
        found.pop()
    return found


def folded(token: str) -> str:
    token = token.removeprefix('"')
    if WORD.fullmatch(token) and len(token) > 2 or token in ("No", "NO"):
        return token.lower()
    return "-" if token == r"\setminus" else token


def plain_text(text: str) -> list[str]:
    """Return the tokens that make texts the same: without fonts and braces around one sign, words in lower case."""
    found = []
    for token in map(folded, tokens(text)):
        found.append(token)
        if token == "}" and found[-3:-2] == ["{"] and (len(found[-2]) == 1 or found[-2][0].isdigit()):
            found[-3:] = [found[-2]]
    return found
