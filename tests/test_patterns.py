"""No Python file of the repository holds a pattern that is hard to read wherever it stands."""

import ast
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[1]
# Not ours, or written by a run.
OTHERS = {"build", "dist", "runs", "shared"}
LONGEST_BODY = 60

PARALLEL = "a parallel assignment of independent values; write one statement for each"
TIMES_TRUTH = "a text or list times a truth value; write `if` or `… if … else …`"
LOOP = "a loop over `x if c else ()`; write the loop below an `if`"
SPLAT = "a conditional splat; write an `if` that adds what it splats"
LONG_BODY = f"a body of more than {LONGEST_BODY} lines; split the function"


def paths_of(node: ast.AST) -> set[str]:
    """Return every variable, attribute and item that an expression reads: `{"a", "a.b", "a.b[0]"}` for `a.b[0]`."""
    kinds = (ast.Name, ast.Attribute, ast.Subscript)
    return {ast.unparse(part) for part in ast.walk(node) if isinstance(part, kinds)}


def leaves_of(target: ast.AST) -> list[ast.AST]:
    """Return the places that a target binds: three for `(a, b), c`."""
    if isinstance(target, ast.Tuple | ast.List):
        return [leaf for part in target.elts for leaf in leaves_of(part)]
    return [target]


def is_parallel_assignment(node: ast.Assign) -> bool:
    """Return whether a statement binds several values of which none reads what another one is bound to."""
    target = node.targets[0]
    value = node.value
    if not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple) or len(target.elts) != len(value.elts):
        return False
    if any(isinstance(part, ast.Starred) for part in target.elts + value.elts):
        return False
    bound = [{ast.unparse(leaf) for leaf in leaves_of(part)} for part in target.elts]
    for place, part in enumerate(value.elts):
        to_others = set().union(*bound[:place], *bound[place + 1 :])
        if paths_of(part) & to_others:
            return False
    return True


def is_truth_value(node: ast.AST) -> bool:
    if isinstance(node, ast.BoolOp):
        return all(is_truth_value(value) for value in node.values)
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) in ("all", "any", "bool", "isinstance")
    is_negation = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return is_negation or isinstance(node, ast.Compare)


def is_text_or_list(node: ast.AST) -> bool:
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_text or isinstance(node, ast.JoinedStr | ast.List | ast.ListComp | ast.Tuple)


def is_times_truth(node: ast.BinOp) -> bool:
    if not isinstance(node.op, ast.Mult):
        return False
    if is_text_or_list(node.left):
        return is_truth_value(node.right)
    return is_text_or_list(node.right) and is_truth_value(node.left)


def is_loop_over_nothing_or_something(node: ast.For | ast.AsyncFor | ast.comprehension) -> bool:
    if not isinstance(node.iter, ast.IfExp):
        return False
    empty = ("()", "[]", "{}", "''", "set()", "tuple()", "list()", "dict()")
    return ast.unparse(node.iter.body) in empty or ast.unparse(node.iter.orelse) in empty


def conditional_splats(node: ast.Starred | ast.keyword | ast.Dict) -> list[ast.IfExp]:
    if isinstance(node, ast.Dict):
        splatted = [value for key, value in zip(node.keys, node.values, strict=True) if key is None]
    elif isinstance(node, ast.keyword) and node.arg is not None:
        splatted = []
    else:
        splatted = [node.value]
    return [value for value in splatted if isinstance(value, ast.IfExp)]


def is_conditional_splat(node: ast.Starred | ast.keyword | ast.Dict) -> bool:
    return len(conditional_splats(node)) > 0


def lines_of_body(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines of a function below its signature and its docstring."""
    has_docstring = ast.get_docstring(node, clean=False) is not None
    body = node.body[1:] if has_docstring and len(node.body) > 1 else node.body
    return node.end_lineno - body[0].lineno + 1


def is_long(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return lines_of_body(node) > LONGEST_BODY


CHECKS = {
    ast.Assign: (is_parallel_assignment, PARALLEL),
    ast.BinOp: (is_times_truth, TIMES_TRUTH),
    ast.For: (is_loop_over_nothing_or_something, LOOP),
    ast.AsyncFor: (is_loop_over_nothing_or_something, LOOP),
    ast.comprehension: (is_loop_over_nothing_or_something, LOOP),
    ast.Starred: (is_conditional_splat, SPLAT),
    ast.keyword: (is_conditional_splat, SPLAT),
    ast.Dict: (is_conditional_splat, SPLAT),
    ast.FunctionDef: (is_long, LONG_BODY),
    ast.AsyncFunctionDef: (is_long, LONG_BODY),
}


def line_of(node: ast.AST) -> int:
    """Return the line of what a check has found, which may be a part of its node."""
    if isinstance(node, ast.comprehension):
        return node.iter.lineno
    if isinstance(node, ast.Dict):
        return conditional_splats(node)[0].lineno
    return node.lineno


def find_patterns(code: str) -> list[tuple[int, str]]:
    """
    Find the patterns that are wrong wherever they stand.

    Args:
        code (`str`): a Python file.

    Returns:
        A line number and a message for each, in the order of lines.
    """
    found = []
    for node in ast.walk(ast.parse(code)):
        if type(node) in CHECKS:
            is_wrong, message = CHECKS[type(node)]
            if is_wrong(node):
                found.append((line_of(node), message))
    return sorted(found)


def python_files(room: Path) -> list[Path]:
    if room.is_dir():
        return sorted(room.rglob("*.py"))
    return [room] if room.suffix == ".py" else []


# Folders at the top of the repository, and setup.py.
ROOMS = sorted(
    room for room in ROOT.iterdir() if room.name not in OTHERS and room.name[0] != "." and python_files(room)
)


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_no_file_holds_a_pattern_that_is_wrong_wherever_it_stands(room):
    found = []
    for file in python_files(room):
        for line, message in find_patterns(file.read_text()):
            found.append(f"{file.relative_to(ROOT)}:{line}: {message}")
    if found:
        pytest.fail("\n".join(found), pytrace=False)


def test_every_folder_of_code_is_read():
    names = {room.name for room in ROOMS}
    assert names >= {"docs", "eval", "recipes", "scripts", "setup.py", "study", "tasks", "tests", "trl_prorl"}


def body_of(lines, docstring=""):
    return f"def long():\n{docstring}" + "    call()\n" * lines


@pytest.mark.parametrize(
    "code, message",
    [
        ("a, b = x, y", PARALLEL),
        ("a, b = f(x), g(x)", PARALLEL),
        ("a, b, c = [], {}, None", PARALLEL),
        ("(a, b), c = f(), y", PARALLEL),
        ("self.a, self.b = a, b", PARALLEL),
        ("found[name], other[name] = x[name], y[name]", PARALLEL),
        ("a, b = a + 1, b + 1", PARALLEL),
        ("'s' * (n != 1)", TIMES_TRUTH),
        ("[x] * (a in b)", TIMES_TRUTH),
        ("(x,) * bool(y)", TIMES_TRUTH),
        ("f'{x}' * (not y)", TIMES_TRUTH),
        ("(a > 1 and b > 1) * [x]", TIMES_TRUTH),
        ("for x in xs if c else (): f(x)", LOOP),
        ("for x in [] if c else xs: f(x)", LOOP),
        ("[x for x in (xs if c else ())]", LOOP),
        ("{x: 1 for x in (set() if c else xs)}", LOOP),
        ("f(*([x] if c else []))", SPLAT),
        ("f(**({'a': x} if c else {}))", SPLAT),
        ("[a, *(xs if c else ys)]", SPLAT),
        ("{**a, **({'b': x} if c else {})}", SPLAT),
        (body_of(61), LONG_BODY),
        (body_of(61).replace("def", "async def"), LONG_BODY),
    ],
)
def test_each_pattern_is_found(code, message):
    assert find_patterns(code) == [(1, message)]


@pytest.mark.parametrize(
    "code",
    [
        "a, b = b, a",
        "a, b = b, a + b",
        "a[0], a[1] = a[1], a[0]",
        "self.a, self.b = self.b, self.a",
        "(a, b), c = f(), a",
        "a, b = f(x)",
        "a, b = pair",
        "a, b = (f(x) for x in xs)",
        "a, *b = x, *y",
        "a = x, y",
        "for a, b in pairs: f(a, b)",
        "'ab' * 3",
        "[0] * n",
        "[0] * (n or 1)",
        "[0] * len(x)",
        "n * (a > b)",
        "for x in xs if c else ys: f(x)",
        "for x in xs or (): f(x)",
        "f(**(keys or {}))",
        "f(*xs, **keys)",
        "f(x if c else y)",
        "{**a, 'b': x if c else y}",
        body_of(60),
        body_of(60, docstring='    """A long\n\n    docstring."""\n'),
    ],
)
def test_what_only_looks_like_it_is_not_found(code):
    assert find_patterns(code) == []


def test_a_message_names_the_line():
    assert find_patterns("x = 1\n\na, b = (\n    1,\n    2,\n)\n") == [(3, PARALLEL)]
    assert find_patterns("[\n    x\n    for x in (xs if c else ())\n]\n") == [(3, LOOP)]
    assert find_patterns("{\n    'a': 1,\n    **({'b': x} if c else {}),\n}\n") == [(3, SPLAT)]
