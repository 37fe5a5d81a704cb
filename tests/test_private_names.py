"""TRL's private names stand only in the trainer, its mixins, and files that ALLOWED names."""

import ast
import inspect
import re
from pathlib import Path

import pytest
from trl import GRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration

import trl_prorl


ROOT = Path(trl_prorl.__file__).parents[1]
ALLOWED = {f"trl_prorl/{name}.py" for name in ("trainer", "run/checkpoint", "evaluation")}
# These sample or score with TRL's own trainer, too, which has no public method for it.
ALLOWED |= {"eval/readiness/samples_of.py", "scripts/bench.py", "trl_prorl/fast/any_trainer.py"}
FOLDERS = ("trl_prorl", "eval", "tasks", "recipes", "scripts", "docs")
FILES = sorted(
    path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    if str(path.relative_to(ROOT)) not in ALLOWED  # `rglob` follows no links
)


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def private_names(cls):
    """The private methods of a class and its bases, and the private attributes that they use."""
    attributes = re.findall(r"self\.(\w+)", "".join(map(inspect.getsource, cls.__mro__[:-1])))
    return set(filter(is_private, [*dir(cls), *attributes]))


NAMES = private_names(GRPOTrainer) | private_names(VLLMGeneration)


def accesses(code):
    """Each private name of TRL in a file: as an attribute of something other than `self`, or as a text."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute) and node.attr in NAMES:
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                yield f"line {node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in NAMES:
            yield f"line {node.lineno}: {node.value!r}"


def test_names_and_files_are_found():
    assert {"_step", "_buffered_inputs", "_generate_single_turn", "_tokenizer", "_save_checkpoint"} <= NAMES
    assert "_iter_named_params" in NAMES
    assert len(FILES) > 150


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_other_file_knows_them(path):
    assert [*accesses(path.read_text())] == []
