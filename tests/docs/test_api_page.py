"""`docs/api.md` is what the generator writes, and describes every argument."""

import ast
import importlib
import inspect
import re
import sys

import pytest
from doc_pages import ROOT
from trl import GRPOTrainer


# A name with its type, as in "alpha (`float`, *optional*, defaults to `0.1`)".
ENTRY = re.compile(r"(\w+) \(((?:`[^`]*`|[^`()])*)\)")


@pytest.fixture(scope="module")
def generator():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        yield importlib.import_module("make_api")
    finally:
        sys.path.pop(0)


def test_the_page_is_current(generator):
    assert generator.PAGE.read_text() == generator.make_page(), f"run {generator.COMMAND}"


def test_docstrings_and_signatures_agree(generator):
    """Names, order and defaults of the arguments."""
    for name in generator.NAMES:
        cls_or_function = generator.find(name)
        entries = [ENTRY.match(one.lstrip("*")) for one in generator.section_entries(cls_or_function, "Args")]
        described = {one[1]: re.search("defaults to `([^`]*)`", one[2]) for one in entries}
        if name == "ProRLTrainer":
            assert described.keys() - {"verify", "ref_model"} <= inspect.signature(GRPOTrainer).parameters.keys()
        elif name not in generator.SIGNATURES:
            parameters = inspect.signature(cls_or_function).parameters
            assert list(described) == list(parameters), name
            for argument, default in described.items():
                told = ast.literal_eval(default[1]) if default else None
                assert parameters[argument].default in (told, inspect.Parameter.empty), (name, argument)
