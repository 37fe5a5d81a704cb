"""
Refuses what is wrong with a recipe or a command line, in one line with the key, the value and the cure. Nothing that
takes long is imported, so that the complaint comes before anything else happens.
"""

import difflib
import re
import types
import typing
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml


# Variables that a recipe may set: none by which a library or a child process could be made to run code.
SAFE_ENV = frozenset(
    "CUDA_VISIBLE_DEVICES OMP_NUM_THREADS TOKENIZERS_PARALLELISM HF_HUB_OFFLINE PYTORCH_CUDA_ALLOC_CONF WANDB_PROJECT "
    "WANDB_ENTITY WANDB_MODE WANDB_NAME TRACKIO_PROJECT".split()
)


BASE = "base"  # the key that names another recipe, whose keys this one takes

# Keys of other versions' recipes, and what to write instead.
RENAMED = {
    "torch_dtype": "write dtype",
    "overwrite_output_dir": "leave it out; a folder that holds a run is never overwritten",
    "evaluation_strategy": "write eval_strategy",
    "max_prompt_length": "leave it out; prompts are never cut",
}


# Keys of text that a recipe may write as a bare on, off or true, which YAML reads as true or false.
BARE = ("pack_groups", "resume_from_checkpoint")


class UniqueKeys(yaml.SafeLoader):
    """YAML in which a key that occurs twice is an error: of two values one would be lost in silence."""

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    "while reading a mapping",
                    node.start_mark,
                    f"the key {key!r} is given twice",
                    key_node.start_mark,
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def check_options(arguments: list[str], flags: Collection[str]) -> None:
    """
    Check the options of a command line, apart from their values.

    Args:
        arguments (`list[str]`):
            The command line, with `--config=PATH` in two parts.
        flags (`Collection[str]`):
            The options that exist, `--config` among them.

    Raises:
        `ValueError`: naming the first that does not exist.
    """
    if arguments and not arguments[0].startswith("-"):
        cure = f": write --config {arguments[0]}" if arguments[0].endswith((".yaml", ".yml")) else ""
        raise ValueError(f"{arguments[0]!r} follows no option{cure}.")
    for argument in arguments:
        name = argument.split("=")[0]
        misspelt = argument.startswith("--") or re.match(r"-[a-z]\w", argument)  # a negative number is a value
        if misspelt and name not in flags:
            raise ValueError(f"unknown option {argument!r}{nearest(name, flags)}.")
    if "--config" in arguments and arguments[-1] == "--config":
        raise ValueError("--config needs the path of a recipe after it.")
    if arguments.count("--config") > 1:
        raise ValueError("--config is given twice; a run has one recipe.")


def check_recipe(path: str | Path, hints: Mapping[str, Any]) -> None:
    """
    Check a YAML recipe's keys and the types of its values.

    Args:
        path (`str` or `Path`):
            The recipe.
        hints (`Mapping[str, Any]`):
            By key, its type.

    Raises:
        `ValueError`: naming the recipe, the key, the value and the type that it takes.
    """
    layers = recipe_layers(path)
    for place, (file, keys) in enumerate(layers):
        check_recipe_runs_no_code(file, keys)
        for key, value in keys.items():
            if key in ("env", BASE):
                continue
            if key not in hints:
                cure = f": {RENAMED[key]}" if key in RENAMED else nearest(str(key), [*hints, BASE])
                raise ValueError(f"{file}: unknown key {key!r}{cure}.")
            if value is False and key.endswith("_strategy"):
                raise ValueError(f'{file}: {key}: no is false in YAML. Put it in quotes: {key}: "no".')
            unsets = value is None and any(key in below for _, below in layers[:place])
            if not unsets and not fits(value, hints[key]):
                raise ValueError(f"{file}: {key}={value!r} is {kind(value)}, and {key} takes {spelt(hints[key])}.")


def read_recipe(path: str | Path) -> dict[str, Any]:
    """
    The keys of a recipe: those of its base, if it names one, and its own, which win. `null` unsets a key of the base,
    which then has its default.

    Raises:
        `ValueError`: there is no such file, or it holds no mapping; the same of the base.
    """
    merged: dict[str, Any] = {}
    for _, keys in recipe_layers(path):
        unset = {key for key, value in keys.items() if value is None and key in merged}
        merged = {key: value for key, value in (merged | keys).items() if key not in unset | {BASE}}
    return merged


def recipe_layers(path: str | Path) -> list[tuple[Path, dict[str, Any]]]:
    """
    The files of a recipe, its base first, each with its own keys.

    Raises:
        `ValueError`: as [`read_recipe`], or the base has a base.
    """
    path = Path(path)
    recipe = _read(path, f"--config {path}")
    if BASE not in recipe:
        return [(path, recipe)]
    asked = recipe[BASE]
    if not isinstance(asked, str):
        raise ValueError(
            f"{path}: {BASE}={asked!r} is {kind(asked)}, and {BASE} takes the path of a recipe, relative to {path}."
        )
    base = path.parent / asked
    keys = _read(base, f"{path}: {BASE}={asked!r}")
    if BASE in keys:
        raise ValueError(f"{path}: {BASE}={asked!r} has a base of its own, {keys[BASE]!r}; one level is all there is.")
    return [(base, keys), (path, recipe)]


def _read(path: Path, said: str) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"{said}: there is no such file{'' if said.endswith(str(path)) else f', {path}'}.")
    try:
        recipe = yaml.load(path.read_text(), UniqueKeys)
    except yaml.YAMLError as error:
        raise ValueError(f"{said} is not YAML: {error}") from error
    if not isinstance(recipe, dict):
        raise ValueError(f"{said} holds {type(recipe).__name__}; a recipe is a mapping of keys to values.")
    return recipe


def recipe_hint(name: str, hint: Any) -> Any:
    """The type of a key as a recipe may spell it."""
    return hint | bool if name in BARE else hint


def check_recipe_runs_no_code(path: str | Path, recipe: dict[str, Any]) -> None:
    """
    Recipes are passed around, so none may make the machine run code that is not installed on it.

    Raises:
        `ValueError`: a key does. On the command line, where users type it themselves, it is allowed.
    """
    for where, keys in (("", recipe), ("model_init_kwargs: ", recipe.get("model_init_kwargs"))):
        keys = keys if isinstance(keys, dict) else {}
        if keys.get("trust_remote_code") not in (None, False, "false", "False"):
            raise ValueError(
                f"{path}: {where}trust_remote_code={keys['trust_remote_code']!r} would run code that comes with a "
                "model, which a recipe may not ask for. If you trust that model, give --trust_remote_code true on the "
                "command line."
            )
        attention = keys.get("attn_implementation")
        if isinstance(attention, str) and "/" in attention:
            raise ValueError(
                f"{path}: {where}attn_implementation={attention!r} would download a kernel and run it, which a recipe "
                "may not ask for. If you trust it, give --attn_implementation on the command line."
            )
    unsafe = sorted(set(map(str, recipe.get("env") or {})) - SAFE_ENV)
    if unsafe:
        raise ValueError(
            f"{path}: env sets {', '.join(unsafe)}, which a recipe may not: set it in the shell. A recipe may set "
            f"{', '.join(sorted(SAFE_ENV))}."
        )


def nearest(name: str, known: Iterable[str]) -> str:
    """`" (did you mean 'x'?)"`, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def fits(value: Any, hint: Any) -> bool:
    """
    Whether a YAML value fits a field's type. Text fits anything: the parser converts it or complains, and one word may
    stand for a list (`lora_target_modules: all-linear`).
    """
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, option) for option in typing.get_args(hint))
    if hint is type(None):
        return value is None
    if isinstance(value, str):
        return True
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (bool, str, list, dict) or origin in (list, dict):
        return isinstance(value, origin or hint)
    return True  # enumerations and the like: checked where they are used


def kind(value: Any) -> str:
    if value is None:
        return "empty"
    names = {bool: "true or false", int: "a whole number", float: "a number", list: "a list", dict: "a mapping"}
    return names.get(type(value), type(value).__name__)


def spelt(hint: Any) -> str:
    """A type in the words of a recipe's author."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "null"}
    words = []
    for option in options:
        origin = typing.get_origin(option) or option
        words.append(names.get(origin) or {list: "a list", dict: "a mapping"}.get(origin, "text"))
    return " or ".join(dict.fromkeys(words))
