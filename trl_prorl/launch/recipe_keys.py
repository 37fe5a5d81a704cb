"""The keys of a recipe, their types and their meaning, from the classes that hold them and from their files."""

import ast
import dataclasses
import functools
import importlib.util
import re
import textwrap
import typing
from dataclasses import dataclass
from pathlib import Path

from ..keys import ProlongedKeys, TaskKeys


GROUP = re.compile(r"^\s*> Parameters that (.+)$")
ENTRY = re.compile(r"^(\s+)(\w+) \((.+)\):$")

# The files in which others declare keys; what a later one declares holds.
DECLARE = {
    "transformers": ("training_args.py",),
    "trl": ("scripts/utils.py", "trainer/base_config.py", "trainer/grpo_config.py", "trainer/model_config.py"),
}


class OtherType:
    """Stands for a type that only an import could tell."""


class KnownTypes(dict):
    """The types that annotations name."""

    def __missing__(self, name):
        return OtherType


KNOWN_TYPES = KnownTypes(bool=bool, int=int, float=float, str=str, list=list, dict=dict)


@dataclass(frozen=True)
class Declared:
    """
    A key as a file declares it.

    Attributes:
        hint (`Any`): Its type; `Any` if that cannot be read.
        default (`Any`): Its default; `dataclasses.MISSING` if there is none, or it is made by code.
    """

    hint: typing.Any
    default: typing.Any = dataclasses.MISSING


@dataclass(frozen=True)
class KeyHelp:
    """
    What `--help` says of a key of a recipe, which is a field of a dataclass.

    Attributes:
        name (`str`), hint (`Any`): Its name and its type.
        default (`str` or `None`): Its default as Python spells it; `None` if that is made by a factory.
        text (`str`): Its meaning: its entry in the docstring, or the help of its field.
        group (`str` or `None`): The purpose that the docstring gives the keys around it.
    """

    name: str
    hint: typing.Any
    default: str | None
    text: str
    group: str | None


@functools.cache
def own_keys() -> dict[str, KeyHelp]:
    """Return our own keys, by name. Nothing that takes long is imported."""
    return _described(TaskKeys, ProlongedKeys)


@functools.cache
def recipe_keys() -> dict[str, KeyHelp]:
    """Return all keys, our own first, by name."""
    from trl import GRPOConfig, ModelConfig, ScriptArguments

    return own_keys() | _described(ScriptArguments, GRPOConfig, ModelConfig)


@functools.cache
def declared_keys() -> dict[str, Declared]:
    """
    Return all keys, and a few names more: whatever the classes of the files that declare them annotate. Those are read
    as text, because importing them takes seconds, which a wrong key need not. Empty if a file is not where it is
    expected.
    """
    found = {}
    for package, files in DECLARE.items():
        spec = importlib.util.find_spec(package)
        for file in files:
            path = Path(spec.origin).parent / file if spec and spec.origin else None
            if path is None or not path.is_file():
                return {}
            found.update(_declared_in(path.read_text(encoding="utf-8")))
    for cls in (TaskKeys, ProlongedKeys):
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            found[field.name] = Declared(hints[field.name], field.default)
    return found


def _declared_in(code: str) -> dict[str, Declared]:
    """Return what the classes of a file annotate."""
    found = {}
    for statement in ast.parse(code).body:
        if not isinstance(statement, ast.ClassDef):
            continue
        for node in statement.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_":
                found[node.target.id] = Declared(_hint_of(node.annotation), _default_of(node.value))
    return found


def _hint_of(annotation: ast.expr) -> typing.Any:
    try:
        return eval(ast.unparse(annotation), {"__builtins__": {}}, KNOWN_TYPES)  # of an installed library's own file
    except (AttributeError, NameError, SyntaxError, TypeError):
        return typing.Any


def _default_of(value: ast.expr | None) -> typing.Any:
    """Return the default that stands after a key's type: a value, or the one that `field` is given."""
    if isinstance(value, ast.Call):
        value = next((given.value for given in value.keywords if given.arg == "default"), None)
    try:
        return dataclasses.MISSING if value is None else ast.literal_eval(value)
    except ValueError:
        return dataclasses.MISSING


def _described(*classes: type) -> dict[str, KeyHelp]:
    keys: dict[str, KeyHelp] = {}
    for cls in classes:
        entries: dict[str, tuple[str, str | None]] = {}
        for base in reversed(cls.__mro__):
            entries.update(_entries(base.__doc__ or ""))
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            text = str(field.metadata.get("help") or "").replace("%%", "%")
            group = None
            if field.name in entries:
                text, group = entries[field.name]
            default = None
            if field.default is not dataclasses.MISSING:
                default = repr(getattr(field.default, "value", field.default))  # of an enumeration
            keys[field.name] = KeyHelp(field.name, hints[field.name], default, text, group)
    return keys


def _entries(docstring: str) -> dict[str, tuple[str, str | None]]:
    """Return the description that a docstring gives each key, and the group that it puts the key in."""
    lines_of: dict[str, list[str]] = {}
    group_of: dict[str, str | None] = {}
    group = None
    current = None  # the key whose lines these are
    indent = ""  # of its entry
    for line in docstring.splitlines():
        group_line = GROUP.match(line)
        entry = ENTRY.match(line)
        if group_line:
            group = group_line[1]
            current = None
        elif entry and (current is None or len(entry[1]) <= len(indent)):
            indent = entry[1]
            current = entry[2]
            lines_of[current] = []
            group_of[current] = group
        elif current and line.strip() and not line.startswith(indent + " "):
            current = None
        elif current:
            lines_of[current].append(line)
    found = {}
    for name, lines in lines_of.items():
        text = " ".join(textwrap.dedent("\n".join(lines)).split())
        found[name] = (text, group_of[name])
    return found
