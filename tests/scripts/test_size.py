"""scripts/size.py counts the code alone, and every budget is of a folder that exists."""

import importlib.util
from pathlib import Path


FILE = Path(__file__).parents[2] / "scripts" / "size.py"
spec = importlib.util.spec_from_file_location("size", FILE)
size = importlib.util.module_from_spec(spec)
spec.loader.exec_module(size)

SOURCE = '''"""A module."""
import os
from sys import (
    argv,
)


def f(x):  # a comment
    """A function."""
    return x + 1
'''


def test_tokens_are_those_of_the_code():
    assert size.count_tokens(SOURCE) == len("def f ( x ) : return x + 1".split())


def test_every_budget_has_files():
    assert [entry for entry in size.BUDGETS if not size.files_of(entry)] == []
