"""How a solution marks its final answer, and what counts as one number rather than a sum or a list."""

import re


# An opening \boxed{, any escaped character, or a brace.
TOKENS = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)

DIGITS = "[0-9]{1,40}"
DECIMAL = rf"(?:{DIGITS}(?:\.{DIGITS})?|\.{DIGITS})"
FRACTION = rf"\\frac\s*(?:\{{\s*-?{DIGITS}\s*\}}|[0-9])\s*(?:\{{\s*{DIGITS}\s*\}}|[0-9])"
POWER_OF_TEN = r"(?:e[+-]?[0-9]{1,3}|\s*(?:\\times|\\cdot|×|\*)\s*10\s*\^\s*(?:\{\s*-?[0-9]{1,3}\s*\}|-?[0-9]))"
NUMBER = re.compile(rf"[+-]?\s*(?:(?:{DIGITS}\s*)?{FRACTION}|{DECIMAL}{POWER_OF_TEN}?)", re.IGNORECASE)
UNIT = re.compile(r"(?:\s*(?:\\?%|°|\^\{?\\circ\}?))?\s*(?:[A-Za-z][A-Za-z .'/-]*(?:\^\{?[23]\}?)?)?\.?")
SCALE_WORD = re.compile(r"\b(?:k|hundred|thousand|million|billion|trillion)\b", re.IGNORECASE)

TAG = re.compile(r"</?\w{1,20}>")
SPACING = re.compile(r"\\[,;:! ]|~")
TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
# $, \(, \), \[, \], \left, \right and currencies.
DELIMITERS = re.compile(r"\\[()\[\]]|\\(?:left|right)(?![A-Za-z])|\\?\$|€|£")
EMPHASIS = " \t\r\n*_`"
THOUSANDS = re.compile(r"(?<![0-9,])[0-9]{1,3}(?:(?:,|\{,\})[0-9]{3})+(?![0-9,])")
SLASHED = re.compile(rf"({DIGITS})\s*/\s*({DIGITS})")


def boxed(text: str) -> list[str]:
    """
    The contents of every `\\boxed{}` of a text, in order of their ends; one that is never closed is passed over.

    Of nested boxes only the innermost counts. It takes linear time.
    """
    found = []
    opened = 0
    # For each brace that is open: where its content starts and the how-manieth box it opens, or nothing.
    stack: list[tuple[int, int] | None] = []
    for token in TOKENS.finditer(text):
        if token.group().startswith(("\\boxed", "\\fbox")):
            opened += 1
            stack.append((token.end(), opened))
        elif token.group() == "{":
            stack.append(None)
        elif token.group() == "}" and stack:
            box = stack.pop()
            # Another box opened in the meantime lay inside.
            if box is not None and box[1] == opened:
                found.append(text[box[0] : token.start()])
    return found


def as_number(text: str) -> str | None:
    """
    A text that is one number in whatever notation, as plain LaTeX without its unit; `None` for anything else.

    Fractions (`\\frac{1}{2}`, `\\dfrac12`, `1/2`), mixed numbers, powers of ten (`4\\times 10^{3}`), thousands separators
    (`1,234`, `1{,}234`, `1\\,234`), signs, currencies, units, tags and emphasis are notation. What would have to be worked
    out (`40+2`, `6\\cdot 7`, `\\sqrt{9}`) and several numbers (`41 42`, `1, 2`) are not.
    """
    text = TAG.sub(" ", text).replace("−", "-").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    # A space between groups of three digits is thin in LaTeX; an ordinary one separates two numbers.
    text = re.sub(r"(?<=[0-9])(?:\\[,!]|~)(?=[0-9]{3})", ",", text)
    text = TEXT_COMMAND.sub(r" \1", SPACING.sub(" ", text))
    text = DELIMITERS.sub("", text).strip(EMPHASIS)
    text = THOUSANDS.sub(lambda match: re.sub("[{},]", "", match.group()), text)
    text = SLASHED.sub(r"\\frac{\1}{\2}", text)
    match = NUMBER.match(text)
    if match is None:
        return None
    unit = text[match.end() :]
    if UNIT.fullmatch(unit) is None or SCALE_WORD.search(unit):
        return None
    # An e would be Euler's number to a reader of LaTeX.
    return re.sub(r"(?i)e([+-]?[0-9]+)$", r"\\times10^{\1}", "".join(match.group().split()))
