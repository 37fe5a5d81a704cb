"""Find the marked final answer of a text, and decide whether it is a single number, not a sum or a list."""

import re
from fractions import Fraction


# An opening \boxed{, any escaped character, or a brace.
TOKENS = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)

MAX_LENGTH = 200  # characters; longer texts are not parsed, because parsing is slower than linear

DIGITS = "[0-9]{1,40}"
DECIMAL = rf"(?:{DIGITS}(?:\.{DIGITS})?|\.{DIGITS})"
FRACTION = rf"\\frac\s*(\{{\s*-?{DIGITS}\s*\}}|[0-9])\s*(\{{\s*-?{DIGITS}\s*\}}|[0-9])"
POWER_OF_TEN = r"(?:e([+-]?[0-9]{1,3})|\s*(?:\\times|\\cdot|×|\*)\s*10\s*\^\s*(\{\s*-?[0-9]{1,3}\s*\}|-?[0-9]))"
# Sign; whole, top and bottom of a fraction, or a decimal number and its power of ten in two notations.
NUMBER = re.compile(rf"([+-]?)\s*(?:(?:({DIGITS})\s*)?{FRACTION}|({DECIMAL}){POWER_OF_TEN}?)", re.IGNORECASE)
EXPONENT = r"(?:\^\{?[23]\}?|[²³])"
# A unit outside \text{} must not look like a product of variables: a word of four letters, or one of these.
SHORT_UNITS = "mm|cm|km|ft|yd|in|mi|kg|mg|lbs?|oz|ml|mL|min|hrs?|sec|mph|kph|rpm|Hz|kWh|days?|men|cups?|eggs?|USD|EUR"
BARE_UNIT = rf"(?:\s*(?:cm|mm|kg|mph)|\s+(?:{SHORT_UNITS}|m/s|[A-Za-z]{{4,}}))(?![A-Za-z]){EXPONENT}?"
BARE_UNITS = rf"{BARE_UNIT}(?:(?:\s+|-|\s*/\s*)(?:[A-Za-z]{{2,}}|[ahs](?![A-Za-z])){EXPONENT}?)*"
# \text{} becomes <>, which LaTeX does not use. A single upright letter may be the imaginary unit or Euler's number;
# these are not.
TEXT_UNIT = rf"<(?:[A-Za-z][A-Za-z .,'/-]+|[mghslLAVWJNCF]){EXPONENT}?>{EXPONENT}?"
TEXT_UNITS = rf"(?:\s*(?:/\s*)?{TEXT_UNIT})+"
UNIT = re.compile(rf"(?:\s*(?:\\?%|°|\^\{{?\\circ\}}?))?(?:{TEXT_UNITS}|{BARE_UNITS})?\s*(?:\.\s*)?")
# Words that are not units: they scale the number, calculate with it, or are numbers themselves.
NOT_A_UNIT = re.compile(
    r"\b(?:M(?!&)|(?i:k|mn|bn|mil|million|billion|trillion|lakh|crore|thousand|hundred|dozen|tenth|hundredth|thousandth|half|"
    r"third|minus|plus|negative|divided|multiplied|squared|cubed|factorial|or|sqrt|pi|zero|two|three|four|five|six|seven|"
    r"eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen|twenty|thirty|forty|fifty|sixty|seventy|"
    r"eighty|ninety)s?)\b"
)
DENIAL = re.compile(r"\bnot\b|n['’]t\b", re.IGNORECASE)

TAG = re.compile(r"</?\w{1,20}>")
SPACING = re.compile(r"\\[,;:! ]|~")
TEXT_COMMAND = re.compile(
    r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{((?:[^{}]|\^\{(?:[23]|\\circ)\})*)\}"
)
# Braces that group, `9{,}500` or `{42}`, as opposed to those around an argument.
GROUP = re.compile(r"(?<![A-Za-z}^_])\{((?:[^{}]|\\frac\s*\{[^{}]*\}\s*\{[^{}]*\}|\^\{(?:[23]|\\circ)\})*)\}")
# $, \(, \), \[, \], \left, \right and currencies.
DELIMITERS = re.compile(r"\\[()\[\]]|\\(?:left|right)(?![A-Za-z])|\\?\$|[€£¥₹]")
EMPHASIS = " \t\r\n*_`"
THOUSANDS = re.compile(r"(?<![0-9,])[0-9]{1,3}(?:(?:,|\{,\})[0-9]{3})+(?![0-9,])")
SLASHED = re.compile(rf"({DIGITS})\s*/\s*({DIGITS})")


def boxed(text: str) -> list[str]:
    """
    Return the contents of every `\\boxed{}` of a text, in order of their ends. Unclosed boxes are skipped. Only the
    innermost of nested boxes counts. The function takes linear time.
    """
    found = []
    opened = 0
    # For each open brace: the start of its content and the number of the box that it opens, or nothing.
    stack: list[tuple[int, int] | None] = []
    for token in TOKENS.finditer(text):
        if token.group().startswith(("\\boxed", "\\fbox")):
            opened += 1
            stack.append((token.end(), opened))
        elif token.group() == "{":
            stack.append(None)
        elif token.group() == "}" and stack:
            box = stack.pop()
            # Skip this box if another box was opened inside it.
            if box is not None and box[1] == opened:
                found.append(text[box[0] : token.start()])
    return found


def unwrapped(command: re.Match) -> str:
    """
    Return the content of a `\\text{}`: unchanged if it starts like a number, otherwise in the brackets that [`UNIT`]
    expects.
    """
    content = command.group(1).strip()
    return f"<{content}>" if content[:1].isalpha() else f" {content}"


def without_braces(text: str) -> str:
    """Remove grouping braces, and `\\text{}` and similar commands, from the inside out."""
    before = None
    while text != before:
        before = text
        text = TEXT_COMMAND.sub(unwrapped, GROUP.sub(r"\1", text))
    return text


def as_number(text: str) -> Fraction | None:
    """
    Return the exact value of a text that is one number, in any notation, without its unit; `None` for anything else.

    Fractions (`\\frac{1}{2}`, `\\dfrac12`, `1/2`), mixed numbers, powers of ten (`4\\times 10^{3}`), thousands
    separators (`1,234`, `1{,}234`, `1\\,234`), signs, currencies, units, tags and emphasis are accepted. Calculations
    (`40+2`, `6\\cdot 7`, `\\sqrt{9}`), several numbers (`41 42`, `1, 2`) and terms (`5x`, `2ab`) are not. A fraction
    that is an integer, such as `84/2`, is an unevaluated division, not a number. A unit must be in a `\\text{}`, or a
    word that cannot be a product of variables.
    """
    if len(text) > MAX_LENGTH:
        return None
    text = TAG.sub(" ", text).replace("−", "-").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    # A thin space groups digits by three; an ordinary space separates two numbers.
    text = re.sub(r"(?<=[0-9])(?:\\[,!]|~)(?=[0-9]{3})", ",", text)
    text = without_braces(SPACING.sub(" ", text))
    text = DELIMITERS.sub("", text).strip(EMPHASIS)
    text = THOUSANDS.sub(lambda match: re.sub("[{},]", "", match.group()), text)
    text = SLASHED.sub(r"\\frac{\1}{\2}", text)
    match = NUMBER.match(text)
    if match is None:
        return None
    unit = text[match.end() :]
    if UNIT.fullmatch(unit) is None or NOT_A_UNIT.search(unit):
        return None
    sign, whole, top, bottom, decimal, exponent, power = match.groups()
    if decimal is not None:
        value = Fraction(decimal) * Fraction(10) ** int((exponent or power or "0").strip("{}"))
    else:
        numerator, denominator = (int(part.strip("{}")) for part in (top, bottom))
        if denominator == 0 or numerator % denominator == 0:
            return None
        value = int(whole or 0) + Fraction(numerator, denominator)
    return -value if sign == "-" else value
