"""
The keys of a recipe, read from the source of the classes that hold them. That takes a tenth of a second; importing
those classes takes torch, transformers and TRL, and several seconds, which is too long to wait for a complaint about a
misspelt key.
"""

import ast
import functools
import importlib.util
import re
import textwrap
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


# The package and the file of the classes of a recipe and the classes that they extend.
PLACES = {
    "TaskArguments": ("trl_prorl", "train.py"),
    "ScriptArguments": ("trl", "scripts/utils.py"),
    "ProRLConfig": ("trl_prorl", "config.py"),
    "ProlongedKeys": ("trl_prorl", "keys.py"),
    "TaskKeys": ("trl_prorl", "keys.py"),
    "GRPOConfig": ("trl", "trainer/grpo_config.py"),
    "_BaseConfig": ("trl", "trainer/base_config.py"),
    "TrainingArguments": ("transformers", "training_args.py"),
    "ModelConfig": ("trl", "trainer/model_config.py"),
}
RECIPE = ("TaskArguments", "ProRLConfig", "ModelConfig")

# The types that a value from YAML can be compared with; any other class accepts every value.
NAMES = {name: getattr(typing, name) for name in ("Any", "Literal", "Optional", "Union")}
NAMES |= {"bool": bool, "dict": dict, "float": float, "int": int, "list": list, "str": str, "None": None}

GROUP = re.compile(r"^\s*> Parameters that (.+)$")
ENTRY = re.compile(r"^(\s+)(\w+) \((.+)\):$")


class AnyObject:
    """Stands in for a class that was not imported."""


@dataclass(frozen=True)
class Key:
    """
    A key of a recipe: a field of a dataclass.

    Attributes:
        name (`str`):
            Its name.
        owner (`str`):
            The class that defines it last.
        hint (`Any`):
            Its type; [`AnyObject`] stands for what is neither built in nor of `typing`.
        default (`str` or `None`):
            Its default as the source spells it; `None` if that is made by a factory.
        text (`str`):
            Its meaning: its entry in the docstring, or the help of its field.
        group (`str` or `None`):
            The purpose that the docstring gives the keys around it.
        aliases (`tuple[str]`):
            Further options of the command line.
    """

    name: str
    owner: str
    hint: Any
    default: str | None
    text: str
    group: str | None
    aliases: tuple[str, ...] = ()

    @property
    def ours(self) -> bool:
        return PLACES[self.owner][0] == "trl_prorl"

    @property
    def options(self) -> list[str]:
        """Its spellings on the command line, as [`~transformers.HfArgumentParser`] makes them."""
        flags = [f"--{self.name}", f"--{self.name.replace('_', '-')}", *self.aliases]
        if self.default == "True" and self.hint in (bool, bool | None):
            flags += [f"--no_{self.name}", f"--no-{self.name.replace('_', '-')}"]
        return list(dict.fromkeys(flags))


def recipe_keys(classes: Iterable[str] = RECIPE) -> dict[str, Key]:
    """
    The keys that some dataclasses take, those of the classes they extend among them, by name.

    Args:
        classes (`Iterable[str]`, *optional*):
            Names in [`PLACES`].

    Raises:
        `LookupError`: a class is not in its place.
    """
    keys: dict[str, Key] = {}
    for name in classes:
        keys |= class_keys(name)
    return keys


@functools.cache
def class_keys(name: str) -> dict[str, Key]:
    """As [`recipe_keys`], of one class."""
    package, file = PLACES[name]
    path = _folder(package) / file
    found = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef) and node.name == name]
    if not found:
        raise LookupError(f"{path} defines no class {name}")
    keys: dict[str, Key] = {}
    for base in found[0].bases:
        if isinstance(base, ast.Name) and base.id in PLACES:
            keys |= class_keys(base.id)
    texts = _entries(ast.get_docstring(found[0], clean=False) or "")
    for node in found[0].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            key = _key(node, name, texts)
            if key is not None:
                keys[key.name] = key
    return keys


def _folder(package: str) -> Path:
    if package == "trl_prorl":
        return Path(__file__).parent.parent
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise LookupError(f"there is no package {package}")
    return Path(spec.submodule_search_locations[0])


def _key(node: ast.AnnAssign, owner: str, texts: dict[str, tuple[str, str | None]]) -> Key | None:
    """The key that an annotated assignment defines, or `None` if it is no field of `__init__`."""
    arguments, default = {}, node.value
    if isinstance(default, ast.Call) and getattr(default.func, "id", "") == "field":
        arguments = {keyword.arg: keyword.value for keyword in default.keywords}
        default = arguments.get("default")
    hint = _hint(node.annotation)
    if hint is typing.ClassVar or _literal(arguments.get("init")) is False:
        return None
    metadata = arguments.get("metadata")
    metadata = (
        {_literal(name): _literal(value) for name, value in zip(metadata.keys, metadata.values, strict=True)}
        if isinstance(metadata, ast.Dict)
        else {}
    )
    text, group = texts.get(node.target.id, (None, None))
    aliases = metadata.get("aliases") or ()
    return Key(
        name=node.target.id,
        owner=owner,
        hint=hint,
        default=None if default is None else ast.unparse(default),
        text=text or str(metadata.get("help") or "").replace("%%", "%"),
        group=group,
        aliases=(aliases,) if isinstance(aliases, str) else tuple(aliases),
    )


def _hint(node: ast.expr) -> Any:
    class Known(ast.NodeTransformer):
        def visit_Name(self, name):
            return name if name.id in NAMES else ast.copy_location(ast.Name("AnyObject", ast.Load()), name)

        def visit_Attribute(self, attribute):
            return ast.copy_location(ast.Name("AnyObject", ast.Load()), attribute)

    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Annotated":
        node = node.slice.elts[0]
    if "ClassVar" in ast.unparse(node):
        return typing.ClassVar
    if isinstance(node, ast.Constant) and isinstance(node.value, str):  # written as text
        node = ast.parse(node.value, mode="eval").body
    return eval(compile(ast.Expression(Known().visit(node)), "annotation", "eval"), {**NAMES, "AnyObject": AnyObject})


def _literal(node: ast.expr | None) -> Any:
    """A constant of the source; `None` for any other expression."""
    try:
        return ast.literal_eval(node) if node is not None else None
    except ValueError:
        return None


def _entries(docstring: str) -> dict[str, tuple[str, str | None]]:
    """The description that a docstring gives each key, and the group that it puts the key in."""
    found: dict[str, tuple[list[str], str | None]] = {}
    group, current, indent = None, None, ""
    for line in docstring.splitlines():
        if match := GROUP.match(line):
            group, current = match[1], None
        elif (match := ENTRY.match(line)) and (current is None or len(match[1]) <= len(indent)):
            indent, current = match[1], match[2]
            found[current] = ([], group)
        elif current and line.strip() and not line.startswith(indent + " "):
            current = None
        elif current:
            found[current][0].append(line)
    return {
        name: (" ".join(textwrap.dedent("\n".join(lines)).split()), group) for name, (lines, group) in found.items()
    }
