"""Read programming problems in the format of MBPP, of HumanEval, or in this project's plain format."""

import ast
import builtins
from collections.abc import Mapping

from trl_prorl.tasks.loaded import Problem, need
from trl_prorl.text import short


INSTRUCTION = "Answer with the Python code in one fenced block."


def parse_problem(row: Mapping, source: str) -> Problem:
    """
    Convert a row in one of three formats, which differ in the key of the tests.

    - `test_list` (MBPP): `text` or `prompt`, `code`, and optionally `test_imports`, `test_setup_code`.
    - `test` (HumanEval): `prompt`, `canonical_solution`, `entry_point`; `test` defines `check(candidate)`.
    - `tests`: `prompt`, a list of statements, and optionally `entry_point`, `setup`, `solution`.

    Raises:
        `ValueError`: If the row has none of these formats.
    """
    for key, parse in FORMATS.items():
        if row.get(key) is not None:
            question, prompt, solution, setup, tests = parse(row, source)
            check_syntax(setup, f"{source}: the code before the function")
            for index, test in enumerate(tests):
                check_syntax(test, f"{source}: {key!r}, test {index}")
            entry_point = optional_text(row, "entry_point", source)
            if not entry_point:
                entry_point = called_name(tests[0], setup, solution, f"{source}: {key!r}")
            columns = {"tests": tests, "entry_point": entry_point, "setup": setup}
            return Problem(question, solution, columns, f"{prompt.strip()}\n{INSTRUCTION}")
    raise ValueError(
        f"{source}: one of 'test_list' (as in MBPP), 'test' (as in HumanEval) or 'tests' (a list of assert "
        f"statements) is needed. Keys: {', '.join(row) or 'none'}"
    )


def parse_mbpp(row: Mapping, source: str) -> tuple[str, str, str, str, list[str]]:
    """
    Return question, prompt, solution, setup and tests. The first test calls the function under test. The prompt shows
    this test, so the model knows name and types.
    """
    question = need(row, ["text", "prompt"], str, source)
    solution = need(row, ["code"], str, source)
    tests = need(row, ["test_list"], list, source)
    imports = row.get("test_imports") or []
    if not isinstance(imports, list) or not all(isinstance(line, str) for line in imports):
        raise ValueError(f"{source}: 'test_imports' is {short(imports)}. It must be a list of texts")
    setup = "\n".join([*imports, optional_text(row, "test_setup_code", source)])
    prompt = f"{question.strip()}\nIt has to pass this test, among others:\n{tests[0]}"
    return question, prompt, solution, setup, tests


def parse_humaneval(row: Mapping, source: str) -> tuple[str, str, str, str, list[str]]:
    """
    Return question, prompt, solution, setup and tests. The part of the prompt before the function (imports, helpers)
    becomes the setup of code and tests.
    """
    keys = ("prompt", "entry_point", "canonical_solution", "test")
    prompt, entry_point, solution, test = (need(row, [key], str, source) for key in keys)
    head, definition, _ = prompt.partition(f"def {entry_point}(")
    if not definition:
        raise ValueError(f"{source}: 'prompt' does not define the 'entry_point' {entry_point!r}")
    question = f"Complete this Python function.\n\n{prompt}"
    return question, question, prompt + solution, head, [f"{test}\n\ncheck({entry_point})"]


def parse_plain(row: Mapping, source: str) -> tuple[str, str, str, str, list[str]]:
    """Return question, prompt, solution, setup and tests."""
    question = need(row, ["prompt"], str, source)
    tests = need(row, ["tests"], list, source)
    solution, setup = (optional_text(row, key, source) for key in ("solution", "setup"))
    return question, question, solution, setup, tests


def optional_text(row: Mapping, key: str, source: str) -> str:
    """Return the text of a key, empty if it is missing. Raise `ValueError` if it is no text."""
    text = row.get(key) or ""
    if not isinstance(text, str):
        raise ValueError(f"{source}: {key!r} is {short(text)}. It must be text")
    return text


FORMATS = {"test_list": parse_mbpp, "test": parse_humaneval, "tests": parse_plain}


def check_syntax(code: object, source: str) -> None:
    """Raise `ValueError` unless the code is Python."""
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, TypeError) as error:
        raise ValueError(f"{source} is not Python: {' '.join(str(error).split())}") from error


def defined_names(code: str) -> set[str]:
    """Return the names defined at the top level; an empty set if the code is not Python."""
    try:
        statements = ast.parse(code).body
    except (SyntaxError, ValueError):
        return set()
    names = set()
    for node in statements:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def called_name(test: str, setup: str, solution: str, source: str) -> str:
    """
    Return the first name that a test calls and the solution defines, or else the first called name that neither Python
    nor the setup defines. The solution comes first because it may redefine a built-in name, as MBPP's solutions do
    with `sum`.

    Raises:
        `ValueError`: If there is no such name.
    """
    calls = [node.func for node in ast.walk(ast.parse(test)) if isinstance(node, ast.Call)]
    names = [call.id for call in calls if isinstance(call, ast.Name)]
    known = defined_names(setup) | defined_names(test) | set(dir(builtins))
    solved = defined_names(solution)
    for name in names:
        if name in solved:
            return name
    for name in names:
        if name not in known:
            return name
    raise ValueError(f"{source}: the first test calls no function of the solution: {test[:60]!r}")
