"""
Compare two answers that `tasks/math_answers.py` has read. Values of one class are equal if they are so exactly. Values
of different classes are equal only by [`same`].
"""

from answering import answer_lines
from exact import POINT_BITS, points, same_expression, same_number
from formulas import formula
from regions import KINDS, same_region
from sympy import MatrixBase, Rational, fraction, re, together


EXPRESSIONS = {"n", "v", "c", "+", "*", "/", "^", "-", "f", "apply", "matrix"}
STATEMENTS = {"named", "=", "order", "in"}
# An answer without variables must not leave these to the reader, unless the reference answer does so.
CALCULATED = {"factorial", "binomial", "floor", "ceiling"}
COORDINATES = ["x", "y", "z"]


def compare(request: dict) -> dict:
    return {"equal": same(request["gold"], request["answer"])}


def same(gold: list, answer: list, within: bool = False) -> bool:
    """
    Return whether an answer equals the reference.

    Args:
        within (`bool`): whether they are elements of lists; these do not lose their names.
    """
    if gold == answer:
        return True
    kinds = {gold[0], answer[0]}
    if "named" in kinds or kinds == {"="}:
        return same_statement(gold, answer, within)
    if kinds & {"q", "%"}:
        return same_quantity(gold, answer, within)
    if kinds <= EXPRESSIONS:
        return same_formula(gold, answer)
    if gold[0] == answer[0] and gold[0] in SAME:
        return SAME[gold[0]](gold, answer)
    if kinds == {"list", "set"}:
        return same_elements(gold, answer)
    if kinds == {"list", "seq"}:
        return same_coordinates(gold, answer)
    if kinds in ({"\\cup"}, {"\\cap"}) and is_match(operands(gold), operands(answer), same):
        return True
    if kinds <= KINDS:
        return is_region_pair(gold, answer) and same_region(gold, answer)
    return False


def operands(node: list) -> list:
    """Return A, B, C of `A ∪ B ∪ C`."""
    return [*operands(node[1]), node[2]] if node[1][0] == node[0] else node[1:]


def same_statement(gold: list, answer: list, within: bool) -> bool:
    """Compare `x = 5` with `5`, and equations with equations."""
    values = [node[2] if node[0] == "named" else node for node in (gold, answer)]
    equations = [node[3] if node[0] == "named" else node for node in (gold, answer)]
    if gold[0] == answer[0] == "named":
        if gold[1] == answer[1] and same(*values):
            return True
    elif "=" not in (gold[0], answer[0]):
        return not within and same(*values)
    if equations[0] is None or equations[1] is None:
        return False
    return same_equation(equations[0], equations[1])


def same_quantity(gold: list, answer: list, within: bool) -> bool:
    """Compare values with units or percent signs. A unit that only one of them names is not compared."""
    if gold[0] == answer[0] == "%":
        return same(gold[1], answer[1])
    if gold[0] == answer[0] == "q":
        return gold[3] == answer[3] and same(times(gold[1], gold[2]), times(answer[1], answer[2]))
    if {gold[0], answer[0]} == {"q", "%"}:
        return False
    if gold[0] == "%":
        return same(times(gold[1], "1/100"), answer)
    if answer[0] == "%":
        bare = answer[1][0] != "n" or abs(Rational(answer[1][1])) >= 1  # 0.5% is hardly meant as 0.5
        return bare and same(gold, answer[1]) or same(gold, times(answer[1], "1/100"))
    return same(gold[1], answer) if gold[0] == "q" else same(gold, answer[1])


def times(node: list, factor: str) -> list:
    if node[0] == "n":
        return ["n", str(Rational(node[1]) * Rational(factor))]
    return ["*", node, ["n", factor]]


def functions(node: list) -> set[str]:
    found = {node[1]} if node[0] == "f" else set()
    return found.union(*(functions(part) for part in node if isinstance(part, list)))


def same_formula(gold: list, answer: list) -> bool:
    """Compare expressions. If the reference is a number, the answer must be one, not a calculation."""
    if gold[0] == "n":
        return answer[0] == "n" and Rational(gold[1]) == Rational(answer[1])
    values = formula(gold), formula(answer)
    if isinstance(values[0], MatrixBase) or isinstance(values[1], MatrixBase):
        return same_matrix(*values)
    left = (functions(answer) - functions(gold)) & CALCULATED
    return not (left and not values[1].free_symbols) and same_expression(*values)


def same_matrix(*values: MatrixBase) -> bool:
    if not all(isinstance(value, MatrixBase) for value in values) or values[0].shape != values[1].shape:
        return False
    return all(map(same_expression, values[0].flat(), values[1].flat()))


def same_equation(gold: list, answer: list) -> bool:
    """Compare equations: one must be a multiple of the other, after fractions are cleared."""
    differences = [fraction(together(formula(left) - formula(right)))[0] for _, left, right in (gold, answer)]
    return is_multiple(*differences) is not None


def is_multiple(first, second) -> int | None:
    """Return the sign of a constant c with first = c · second, or 0 if it has none; `None` if there is no such c."""
    symbols = first.free_symbols
    if not symbols or symbols != second.free_symbols:
        return None
    base = None
    for point in points(symbols):
        values = first.xreplace(point), second.xreplace(point)
        if base is None and same_number(values[1], 0 * values[1], POINT_BITS) is False:
            base = values
    if base is None:
        return None
    for point in points(symbols):
        crossed = first.xreplace(point) * base[1], second.xreplace(point) * base[0]
        if same_number(*crossed, POINT_BITS) is not True:
            return None
    ratio = base[0] / base[1]
    if ratio == 0:
        return None
    return (1 if ratio.evalf() > 0 else -1) if re(ratio) == ratio else 0


def same_order(gold: list, answer: list) -> bool:
    """Compare inequalities as sets of numbers, or two with several variables as differences."""
    try:
        return same_region(gold, answer)
    except (ValueError, NotImplementedError):
        return same_step(*gold[1:], *answer[1:]) if len(gold) == len(answer) == 4 else False


def same_step(signs: list, left: list, right: list, others: list, low: list, high: list) -> bool:
    """Compare `left < right` with `low < high`, or with `high > low`."""
    turned = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}.get(others[0], others[0])
    sign = is_multiple(formula(left) - formula(right), formula(low) - formula(high))
    if signs[0] == "\\ne":
        return others == signs and sign is not None
    return (sign == 1 and signs == others) or (sign == -1 and signs[0] == turned)


def is_match(gold: list, answer: list, equal) -> bool:
    """Return whether the elements are the same, in any order."""
    if len(gold) != len(answer):
        return False
    left = list(answer)
    for element in gold:
        place = next((n for n, other in enumerate(left) if equal(element, other)), None)
        if place is None:
            return False
        del left[place]
    return True


def same_within(gold: list, answer: list) -> bool:
    return same(gold, answer, within=True)


def distinct(elements: list) -> list:
    found = []
    for element in elements:
        if not any(same_within(element, other) for other in found):
            found.append(element)
    return found


def same_elements(gold: list, answer: list) -> bool:
    """Compare sets, or a set with a list of all its elements. A list of numbers may have one name for all."""
    gold, answer = (nameless(node) for node in (gold, answer))
    elements = [distinct(node[1:]) if node[0] == "set" else node[2:] for node in (gold, answer)]
    return is_match(*elements, same_within)


def nameless(node: list) -> list:
    names = {part[1] if part[0] == "named" else None for part in node[2:]}
    if node[0] != "list" or len(names) != 1 or names == {None}:
        return node
    return [*node[:2], *(part[2] for part in node[2:])]


def same_list(gold: list, answer: list) -> bool:
    """Compare several answers, in any order. A comma may be 'or' between values, and is 'and' between statements."""
    joints = {gold[1], answer[1]} - {","}
    plain = nameless(gold), nameless(answer)
    if "or" in joints and (len(joints) > 1 or gold[1] != answer[1]):
        if any(part[0] in STATEMENTS or part[0] == "v" for node in plain for part in node[2:]):
            return False
        if len(joints) > 1:
            return False
    names = [{part[1] for part in node[2:] if part[0] == "named"} for node in (gold, answer)]
    if names[0] and names[1] and names[0] != names[1]:
        return False
    return is_match(plain[0][2:], plain[1][2:], same_within)


def same_coordinates(gold: list, answer: list) -> bool:
    """Compare `(1, 2)` with `x = 1, y = 2`."""
    listed, sequence = (gold, answer) if gold[0] == "list" else (answer, gold)
    named = sorted(listed[2:], key=lambda part: str(part[1]))
    names = [part[1] for part in named if part[0] == "named"]
    if sequence[1] != "()" or len(names) != len(sequence) - 2 or listed[1] == "or" or len(names) < len(listed) - 2:
        return is_region_pair(gold, answer)
    return names == COORDINATES[: len(names)] and all(map(same, [part[2] for part in named], sequence[2:]))


def same_sequence(gold: list, answer: list) -> bool:
    return gold[1] == answer[1] and len(gold) == len(answer) and all(map(same_within, gold[2:], answer[2:]))


def is_region_pair(gold: list, answer: list) -> bool:
    """Return whether both are sets of numbers that can be compared, and the same."""
    try:
        return same_region(gold, answer)
    except (ValueError, NotImplementedError):
        return False


SAME = {
    "list": same_list,
    "set": same_elements,
    "seq": same_sequence,
    "order": same_order,
}


if __name__ == "__main__":
    answer_lines(compare, memory_mib=4096, seconds=60)
