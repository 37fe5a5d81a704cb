r"""
Compare two answers, as tokens of LaTeX. An answer is one of a few classes, or is not read: a quantity, an equation, or
several answers (a list, tuple, interval, set, union or matrix). It equals answers of its own class, value for value.
"""

import re
from collections import Counter
from fractions import Fraction
from typing import NamedTuple

import sympy
from answering import answer_lines
from exact import is_multiple, same_expression
from formulas import CONSTANTS, FUNCTIONS, Unread, formula
from latex import CLOSING, OPENING, number
from units import split_unit


WORDS = {'"and': "and", "and": "and", '"or': "or", "or": "or"}
JOINTS = {",": ",", ";": ",", **WORDS}
ORDER = {"<": "()", r"\le": "[]"}  # the brackets of an interval
TURNED = {">": "<", r"\ge": r"\le"}
RELATIONS = {*ORDER, *TURNED, "=", r"\in"}
MATRICES = ("pmatrix", "bmatrix")
LISTS = {",", "and", "or", r"\{\}"}
UNORDERED = {*LISTS, r"\cup"}
PERCENT = "percent"
# Before an equals sign: x, x_1, AB, f(2), \angle ABC, \text{Area}, (x, y).
NAME = re.compile(
    r"""
    \( \ \w (?:\ ,\ \w)+ \ \)
    | (?:\\(?:angle|triangle)\ )?
      (?: \\?[A-Za-z]+ | "[A-Za-z]+(?:\ "[A-Za-z]+)* | \\(?:vec|bar|overline)\ \{\ \w+\ \} ) (?:\ ')*
      (?:\ _\ (?: "?\w+ | \{[^{}]*\} ))? (?:\ \^\ \{\ -\ 1\ \})? (?:\ \([\w ,.=<>\\]*\))?
    """,
    re.VERBOSE,
)


class Quantity(NamedTuple):
    """
    A number or an expression, with its unit.

    Attributes:
        tokens (`list[str]`): of the value.
        size (`Fraction`), unit (`Counter`): see [`split_unit`].
    """

    tokens: list[str]
    size: Fraction
    unit: Counter


class Equation(NamedTuple):
    """`left = right`, or an interval as the values of a variable. `name` is `left` if it is a name."""

    left: list[str]
    right: list[str]
    name: str | None


class Several(NamedTuple):
    """
    Several answers. `kind` is what joins or encloses them: a comma, `and`, `or`, a union sign, brackets, `row` or
    `matrix`.
    """

    kind: str
    values: list


def split(tokens: list[str], signs) -> tuple[list[list[str]], list[str]]:
    """Return the parts between the signs outside all brackets, and the signs. No part is empty."""
    parts = [[]]
    between = []
    depth = 0
    for token in tokens:
        depth += (token in OPENING) - (token in CLOSING)
        if depth < 0:
            raise Unread
        if depth == 0 and token in signs:
            between.append(token)
            parts.append([])
        else:
            parts[-1].append(token)
    if not all(parts):
        raise Unread
    return parts, between


def read(tokens: list[str]) -> Quantity | Equation | Several:
    """Read one or several answers. Raises [`Unread`]."""
    following = [*tokens[1:], None]
    # `1, 2, and 3` is `1, 2 and 3`.
    tokens = [token for token, after in zip(tokens, following, strict=True) if token != "," or after not in WORDS]
    parts, joints = split(tokens, JOINTS)
    values = read_each(parts)
    if len(values) == 1:
        return values[0]
    kinds = {JOINTS[sign] for sign in joints} - {","}
    if len(kinds) > 1:
        raise Unread
    first = values[0]
    if isinstance(first, Equation) and first.name and not any(isinstance(value, Equation) for value in values[1:]):
        values = [first, *(first._replace(right=part) for part in parts[1:])]  # x = 1, 2
    return Several(kinds.pop() if kinds else ",", values)


def read_each(parts: list[list[str]]) -> list:
    r"""Read answers, each once for both signs of its `\pm`."""
    return [read_one(variant) for part in parts for variant in variants(part)]


def variants(tokens: list[str]) -> list[list[str]]:
    if r"\pm" not in tokens or tokens[0] == r"\{":
        return [tokens]
    place = tokens.index(r"\pm")
    return [[*tokens[:place], sign, *tokens[place + 1 :]] for sign in "+-"]


def read_one(tokens: list[str]) -> Quantity | Equation | Several:
    sides, relations = split(tokens, RELATIONS)
    if relations:
        return read_statement(sides, relations)
    parts, unions = split(tokens, {r"\cup"})
    if unions:
        return Several(r"\cup", [read_one(part) for part in parts])
    if tokens[0] in OPENING - {"{", r"\begin"} and tokens[-1] in CLOSING and is_enclosed(tokens):
        return read_brackets(tokens[0] + tokens[-1], tokens[1:-1])
    if tokens[0] == r"\begin" and tokens[2] in MATRICES and tokens[-4:] == [r"\end", *tokens[1:4]]:
        return read_matrix(tokens[4:-4])
    return Quantity(*split_unit(tokens))


def is_enclosed(tokens: list[str]) -> bool:
    """Return whether the first bracket closes at the end, unlike in (1)(2)."""
    depth = 0
    for token in tokens[:-1]:
        depth += (token in OPENING) - (token in CLOSING)
        if depth == 0:
            return False
    return True


def read_brackets(kind: str, inside: list[str]) -> Quantity | Equation | Several:
    parts, _ = split(inside, {",", ";"})
    if kind == r"\{\}":
        return Several(kind, read_each(parts))
    if len(parts) == 1 and kind == "()":
        return read_one(inside)
    if len(parts) != 2 and kind in ("(]", "[)"):
        raise Unread
    return Several(kind, [read_one(part) for part in parts])


def read_matrix(inside: list[str]) -> Several:
    rows = []
    for row in split(inside, {"\\\\"})[0]:
        entries, _ = split(row, {"&"})
        rows.append(Several("row", [read_one(entry) for entry in entries]))
    return Several("matrix", rows)


def read_statement(sides: list[list[str]], relations: list[str]) -> Equation:
    """Read an equation, or an inequality such as `x > 3` or `1 < x < 3` as `x = (1, 3)`."""
    if relations in (["="], [r"\in"]):
        left, right = sides
        if relations == [r"\in"] and right[0] not in OPENING:
            raise Unread  # of a set that only has a name
        if name_of(left) is None and name_of(right):
            left, right = right, left
        within_itself = len(left) == 1 and left[0] in right  # x = 2x + 3
        return Equation(left, right, None if within_itself else name_of(left))
    if relations[0] in TURNED:
        sides = sides[::-1]
        relations = [TURNED.get(sign, sign) for sign in relations[::-1]]
    place = next((place for place, side in enumerate(sides) if name_of(side)), None)
    if place not in (0, 1) or len(sides) - place > 2 or not ORDER.keys() >= {*relations}:
        raise Unread
    low = [ORDER[relations[0]][0], *sides[0]] if place else ["(", "-", r"\infty"]
    high = [*sides[-1], ORDER[relations[-1]][1]] if place < len(sides) - 1 else [r"\infty", ")"]
    return Equation([], [*low, ",", *high], name_of(sides[place]))


def name_of(tokens: list[str]) -> str | None:
    """Return the name that may stand before an equals sign, or `None`."""
    text = " ".join(tokens)
    first = tokens[0].removeprefix("\\")
    if (
        NAME.fullmatch(text) is None
        or text in CONSTANTS
        or f"\\{first}" in FUNCTIONS
        or re.fullmatch("[a-z]{2,3}", text)
    ):
        return None
    return text.replace('"', "")


def compare(request: dict) -> dict:
    return {"equal": same(read(request["gold"]), read(request["answer"]))}


def same(gold, answer, within: bool = False) -> bool:
    """
    Return whether an answer equals the reference.

    Args:
        within (`bool`): whether they are elements of several; these do not lose their names.
    """
    if isinstance(gold, Equation) or isinstance(answer, Equation):
        return same_equation(gold, answer, within)
    if type(gold) is not type(answer):
        return False
    return same_quantity(gold, answer) if isinstance(gold, Quantity) else same_values(gold, answer)


def same_equation(gold, answer, within: bool) -> bool:
    """Compare `x = 5` with `5`, and equations: one must be a multiple of the other, after fractions are cleared."""
    values = []
    for side in (gold, answer):
        values.append(read(side.right) if isinstance(side, Equation) and side.name else side)
    if not (isinstance(gold, Equation) and isinstance(answer, Equation)):
        return not within and Equation not in map(type, values) and same(*values)
    if gold.name and gold.name == answer.name and same(*values):
        return True
    if not (gold.left and answer.left):
        return False  # an inequality
    return is_multiple(formula(gold.left) - formula(gold.right), formula(answer.left) - formula(answer.right))


def same_values(gold: Several, answer: Several) -> bool:
    """Compare several answers: in order between brackets, else in any. A comma may be `and`, `or` or a set."""
    if len(gold.values) != len(answer.values):
        return False
    kinds = {gold.kind, answer.kind}
    if len(kinds) == 1 and gold.kind not in UNORDERED:
        return all(same(*pair, within=True) for pair in zip(gold.values, answer.values, strict=True))
    if len(kinds) > 1 and not (kinds <= LISTS and "," in kinds):
        return False
    names = {common_name(gold), common_name(answer)} - {None}
    if len(names) > 1:
        return False
    expected = without_name(gold)
    remaining = without_name(answer)
    if "," in kinds and "or" in kinds and any(map(is_statement, expected + remaining)):
        return False  # x = 1, y = 2 are both
    for element in expected:
        place = next((place for place, value in enumerate(remaining) if same(element, value, within=True)), None)
        if place is None:
            return False
        del remaining[place]
    return True


def common_name(several: Several) -> str | None:
    """Return the name of `x = 1, x = 2`; `None` for different names, and for inequalities."""
    names = {value.name if isinstance(value, Equation) and value.left else None for value in several.values}
    return names.pop() if len(names) == 1 else None


def without_name(several: Several) -> list:
    if common_name(several) is None:
        return list(several.values)
    return [read(value.right) for value in several.values]


def is_statement(value) -> bool:
    return isinstance(value, Equation) or isinstance(value, Quantity) and name_of(value.tokens) is not None


def same_quantity(gold: Quantity, answer: Quantity) -> bool:
    """Compare values with units or percent signs. A unit that only one of them names is not compared."""
    if gold.unit and answer.unit:
        return gold.unit == answer.unit and same_value(gold.tokens, answer.tokens, answer.size / gold.size)
    if PERCENT in gold.unit:
        return same_value(gold.tokens, answer.tokens, 100)
    if PERCENT not in answer.unit:
        return same_value(gold.tokens, answer.tokens)
    value = number(answer.tokens)
    is_bare = value is None or abs(value) >= 1  # 0.5% is hardly meant as 0.5
    if is_bare and same_value(gold.tokens, answer.tokens):
        return True
    return same_value(gold.tokens, answer.tokens, Fraction(1, 100))


def same_value(gold: list[str], answer: list[str], factor: Fraction | int = 1) -> bool:
    """Return whether gold = factor · answer. If the reference is a number, so must be the answer: no calculation."""
    value = number(gold)
    if value is not None:
        answer_value = number(answer)
        return answer_value is not None and value == factor * answer_value
    return same_expression(formula(gold), sympy.Rational(factor) * formula(answer))


if __name__ == "__main__":
    answer_lines(compare, memory_mib=4096, seconds=60)
