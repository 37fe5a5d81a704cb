r"""
Read an answer in LaTeX as a value of a known class. A text is read whole, or not at all.
`math_nodes.py` lists the values.
"""

import re
from fractions import Fraction

from trl_prorl.tasks.latex import CLOSING, OPENING, tokens
from trl_prorl.tasks.math_expressions import FUNCTIONS, PAIRS, expression
from trl_prorl.tasks.math_nodes import Unread, is_number, is_whole, negative, number, quotient
from trl_prorl.tasks.units import CURRENCIES, PERCENT, SCALES, known, unit


MAX_LENGTH = 1000  # characters
ORDER = {"<", ">", r"\le", r"\ge", r"\ne"}
RELATIONS = ORDER | {"=", r"\in", r"\equiv"}
SET_OPERATIONS = {r"\cup", r"\cap", r"\setminus"}
JOINTS = {",": ",", ";": ",", '"and': "and", '"or': "or"}
TEMPERATURES = {"coulomb": "celsius", "farad": "fahrenheit"}  # letters after a degree sign
# Meaning of ordinary words in a run of letters; other runs of up to three are products.
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
# Allowed before an equals sign: x, x_1, AB, f(2), f'(x), \angle ABC, \text{Area}, dy/dx.
NAME = re.compile(
    r"""(?:\\(?:angle|triangle)\ )?
    (?: \(\ \w(?:\ ,\ \w)+\ \) | (?:"[A-Za-z]+\ ?)+ | \\frac\ \{\ d\ \w+\ \}\ \{\ d\ \w+\ \}
        | (?:\\?[A-Za-z]+(?:\{\\?\w+\})?)(?:\ ')*
        (?:\ _\ (?:\w+|\{[^{}]*\}))? (?:\ \^\ \{\ -\ 1\ \})? (?:\ \(\ [\w ,.=<>\\]+\ \))? )""",
    re.VERBOSE,
)


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
    based = base and base_number(*base.groups())
    if based:
        return based
    if DATE.fullmatch(bare) or TIME.fullmatch(bare):
        raise Unread
    found = outward(runs(tokens(text)))
    numbers = [token for token in found if is_number(token)]
    if len(numbers) > 1 and any(re.match("0[0-9]", token) for token in numbers):
        raise Unread
    return answer(found)


def base_number(digits: str, base: str | None, word: str | None) -> list | None:
    """Return a number in another base; `None` if a digit is too large."""
    size = int(base) if base else BASES.get(word, 0)
    if not 2 <= size <= 36 or any(int(digit, 36) >= size for digit in digits):
        return None
    return ["n", digits] if size == 10 else ["base", digits, size]


def answer(found: list[str]) -> list:
    """Read one or several answers."""
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
    size = expression(modulus)
    parts, _ = split(sides[-1], {",", '"or'})
    residues = [expression(part, sign) for part in parts for sign in signs(part)]
    if not all(is_whole(node) for node in (size, *residues)) or int(size[1]) < 1:
        raise Unread
    node = ["mod", size[1], *sorted({int(residue[1]) % int(size[1]) for residue in residues})]
    return node if name is None else ["named", name, node, None]


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
        return ["=", expression(left, sign), expression(right, sign)]
    try:
        both = ["=", expression(left, sign), expression(right, sign)]
    except Unread:
        both = None
    if both is not None and contains(both[2], both[1]):
        return both
    return ["named", name, value(right, sign), both]


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
        return ratio(*map(expression, parts))
    return quantity(found, sign)


def ratio(first: list, *others: list) -> list:
    """Return a : b as the quotient, and a : b : c as the quotients with the first part."""
    if len(others) == 1:
        return quotient(first, others[0])
    return ["seq", ":", *(quotient(other, first) for other in others)]


def is_enclosed(found: list[str]) -> bool:
    """Return whether the first bracket closes at the end, unlike in (1)(2)."""
    depth = 0
    for token in found[:-1]:
        depth += (token in OPENING) - (token in CLOSING)
        if depth < 1:
            return False
    return depth == 1 and found[-1] in CLOSING


def enclosed(found: list[str], sign: int) -> list | None:
    """Read one pair of brackets with commas: tuple, vector, interval or set. `None` for anything else."""
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
        if condition[0] != "order" or len(name) != 1 or name[0] not in parts[1]:
            raise Unread
        return condition
    elements = []
    for part in split(inside, {",", ";"})[0]:
        if not part:
            raise Unread
        elements += [value(part, sign) for sign in signs(part)]
    return ["set", *elements]


def is_degrees(node: list) -> bool:
    return node[:2] == ["f", "degree"]


def suffix(found: list[str]) -> tuple[int, int, tuple[Fraction, dict[str, int]]]:
    """Return the place of a scale (`million`) and unit, the scale, and the unit; the end if there is none."""
    for start in range(1, len(found)):
        if found[start].startswith('"'):
            scale = SCALES.get(found[start][1:], 1)
            rest = found[start + (scale > 1) :]
            named = unit(rest) if rest else (Fraction(1), {})
            if named is not None:
                return start, scale, named
    return len(found), 1, (Fraction(1), {})


def quantity(found: list[str], sign: int) -> list:
    """Read an expression, with its currency, unit or percent sign."""
    money = next((token for token in found[:2] if token in CURRENCIES), None)
    if money is not None:
        found = [token for token in found if token != money]
    if not found:
        raise Unread
    if found[-1] in PERCENT and money is None:
        return ["%", expression(found[:-1], sign)]
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
