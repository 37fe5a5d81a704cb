"""Each list of `trl_prorl/supported.py` stands once in the code."""

import ast
from pathlib import Path

import pytest

import trl_prorl
from trl_prorl import supported


PACKAGE = Path(trl_prorl.__file__).parent
FOLDERS = (PACKAGE, PACKAGE / "eval", PACKAGE / "tasks", PACKAGE / "recipes")  # the last three are links
FILES = sorted({path for folder in FOLDERS for path in folder.rglob("*.py") if path != PACKAGE / "supported.py"})
LISTS = {
    name: frozenset(value)
    for name, value in vars(supported).items()
    if name.isupper() and isinstance(value, (dict, tuple, list, frozenset))
}


def literal_lists(code):
    """The strings of each literal tuple, list, set and dict (its keys), and of a text that is split, with the line."""
    for node in ast.walk(ast.parse(code)):
        elements = []
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            elements = node.elts
        elif isinstance(node, ast.Dict):
            elements = node.keys
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "split":
            if isinstance(node.func.value, ast.Constant):
                yield node.lineno, str(node.func.value.value).split()
        strings = [part.value for part in elements if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        if elements and len(strings) == len(elements):
            yield node.lineno, strings


def second_lists(code):
    """Literal lists of two elements or more that are all members of one list."""
    found = []
    for line, strings in literal_lists(code):
        of = [name for name, members in LISTS.items() if members.issuperset(strings)]
        if of and len(set(strings)) > 1:
            found.append((line, strings, of))
    return found


def test_there_are_lists_and_files():
    assert {"FAMILIES", "LOSS_TYPES", "SCHEDULES", "OPTIMIZERS", "IMPORTANCE_LEVELS"} <= LISTS.keys()
    assert len(FILES) > 100


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_list_stands_a_second_time(path):
    assert second_lists(path.read_text()) == []
