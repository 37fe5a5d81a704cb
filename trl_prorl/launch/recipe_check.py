"""
Refuses what is wrong with a recipe or a command line, in one line with the key, the value and the cure. Nothing that
takes long is imported, so that the complaint comes before anything else happens.
"""

import difflib
import os
import re
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from ..errors import InputError
from ..record.run_files import parse_json, read_text
from ..text import cut, short


# Variables that a recipe may set: none by which a library or a child process could be made to run code.
SAFE_ENV = frozenset(
    "CUDA_VISIBLE_DEVICES OMP_NUM_THREADS TOKENIZERS_PARALLELISM HF_HUB_OFFLINE PYTORCH_CUDA_ALLOC_CONF WANDB_PROJECT "
    "WANDB_ENTITY WANDB_MODE WANDB_NAME TRACKIO_PROJECT".split()
)


BASE = "base"  # the key that names another recipe, whose keys this one takes

# Keys of other versions' recipes, and what to write instead.
RENAMED = {
    "torch_dtype": "write dtype",
    "lr": "write learning_rate",
    "overwrite_output_dir": "leave it out; a folder that holds a run is never overwritten",
    "evaluation_strategy": "write eval_strategy",
    "max_prompt_length": "leave it out; prompts are never cut",
}


# Keys of text that a recipe may write as a bare on, off or true, which YAML reads as true or false.
BARE = ("pack_groups", "compact_generation", "resume_from_checkpoint")

# Keys, at any depth, that a recipe may only switch off, and the effect of any other value.
SWITCHES = {
    "trust_remote_code": "run code that comes with a model",
    "use_kernels": "download kernels and run them",
    "kernel_config": "download kernels and run them",
    "allow_all_kernels": "download kernels and run them",
    "custom_generate": "run code that comes with a model",
    "allow_weak_sandbox": "let model-written code read this user's files",
}
# Arguments of `from_pretrained` that a recipe may give: none that names code, or a file that is read with pickle.
INIT = frozenset(
    "attn_implementation device_map dtype max_memory max_position_embeddings revision rope_parameters subfolder "
    "torch_dtype use_cache variant".split()
)
RATES = re.compile("drop|jitter|noise")  # and those that a model with dropout needs (scoring/dropout.py)
FILES = ("accelerator_config", "deepspeed", "fsdp_config")  # text of these keys may be the path of a JSON file
TYPES = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
TYPES |= {list: "a list", dict: "a mapping"}
DEEPEST, MOST = 50, 20_000  # values inside values, and values of one key


class UniqueKeys(yaml.SafeLoader):
    """YAML in which a key that occurs twice is an error: of two values one would be lost in silence."""

    def compose_mapping_node(self, anchor):
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            wrong = None
            if not isinstance(key, yaml.ScalarNode):
                wrong = "a key is a list or a mapping; write text"
            elif key.tag != "tag:yaml.org,2002:merge" and (key.tag, key.value) in seen:
                wrong = f"the key {short(key.value)} is given twice"
            if wrong is not None:
                raise yaml.constructor.ConstructorError(None, None, wrong, key.start_mark)
            seen.add((key.tag, key.value))
        return node


def check_config_option(arguments: list[str]) -> list[str]:
    """
    A command line with `--config=PATH` in two parts. Raises `ValueError`: it begins with no option, or does not name
    one recipe.
    """
    arguments = [part for arg in arguments for part in (arg.split("=", 1) if arg.startswith("--config=") else [arg])]
    if arguments and not arguments[0].startswith("-"):
        cure = f": write --config {arguments[0]}" if arguments[0].endswith((".yaml", ".yml")) else ""
        raise InputError(f"{arguments[0]!r} follows no option{cure}.")
    if "--config" in arguments and arguments[-1] == "--config":
        raise InputError("--config needs the path of a recipe after it.")
    if arguments.count("--config") > 1:
        raise InputError("--config is given twice; a run has one recipe.")
    return arguments


def check_options(arguments: list[str], flags: Collection[str]) -> None:
    """Raise a `ValueError` that names the first option of a command line that is not one of the flags."""
    for argument in arguments:
        name = argument.split("=")[0]
        key = name.lstrip("-").replace("-", "_")
        misspelt = argument.startswith("--") or re.match(r"-[a-z]\w", argument)  # a negative number is a value
        if misspelt and name not in flags:
            cure = f": {RENAMED[key]}" if key in RENAMED else nearest(cut(name), flags)
            raise InputError(f"unknown option {short(argument)}{cure}.")


def check_recipe(path: str | Path, hints: Mapping[str, Any], others: Collection[str] = ()) -> dict[str, Any]:
    """
    The keys of a YAML recipe, as [`read_recipe`], checked with the types of their values, which `hints` has by key;
    `others` are keys of any type. Raises `ValueError`: naming the recipe, the key, the value and the type that it
    takes.
    """
    layers = recipe_layers(path)
    for place, (file, keys) in enumerate(layers):
        check_env(file, keys.get("env"))
        for key, value in keys.items():
            if key in ("env", BASE):
                continue
            check_runs_no_code(file, key, value, hints.get(key))
            if key not in hints and key not in others:
                cure = f": {RENAMED[key]}" if key in RENAMED else nearest(cut(str(key)), [*hints, *others, BASE])
                raise InputError(f"{file}: unknown key {short(key)}{cure}.")
            if value is False and key.endswith("_strategy"):
                raise InputError(f'{file}: {key}: no is false in YAML. Put it in quotes: {key}: "no".')
            unsets = value is None and any(key in below for _, below in layers[:place])
            hint = hints.get(key, Any) | bool if key in BARE else hints.get(key, Any)
            if not unsets and not fits(value, hint):
                takes = spelt(hint)
                raise InputError(f"{file}: {key}={short(value)} is {kind(value)}, and {key} takes {takes}.")
    return merged(layers)


def read_recipe(path: str | Path) -> dict[str, Any]:
    """
    The keys of a recipe: those of its base, if it names one, and its own, which win. `null` unsets a key of the base,
    which then has its default. Raises `ValueError`: there is no such file, or it holds no mapping; the same of the
    base.
    """
    return merged(recipe_layers(path))


def merged(layers: list[tuple[Path, dict[str, Any]]]) -> dict[str, Any]:
    """The keys of a recipe's layers."""
    found: dict[str, Any] = {}
    for _, keys in layers:
        unset = {key for key, value in keys.items() if value is None and key in found}
        found = {key: value for key, value in (found | keys).items() if key not in unset | {BASE}}
    return found


def recipe_layers(path: str | Path) -> list[tuple[Path, dict[str, Any]]]:
    """
    The files of a recipe, its base first, each with its own keys. Raises `ValueError`: as [`read_recipe`], or the base
    has a base.
    """
    path = Path(path)
    recipe = _read(path, f"--config {path}")
    if BASE not in recipe:
        return [(path, recipe)]
    asked = recipe[BASE]
    said = f"{path}: {BASE}={short(asked)}"
    if not isinstance(asked, str):
        raise InputError(f"{said} is {kind(asked)}, and {BASE} takes the path of a recipe, relative to {path}.")
    base = path.parent / asked
    keys = _read(base, said)
    if BASE in keys:
        raise InputError(f"{said} has a base of its own, {short(keys[BASE])}; one level is all there is.")
    return [(base, keys), (path, recipe)]


def _read(path: Path, said: str) -> dict[str, Any]:
    if not os.path.isfile(path):
        raise InputError(f"{said}: there is no such file{'' if said.endswith(str(path)) else f', {cut(str(path))}'}.")
    text = read_text(path)
    try:
        recipe = yaml.load(text, UniqueKeys)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise InputError(f"{said} is not YAML: {cut(error.problem or str(error))}{where}.") from error
    except RecursionError:
        raise InputError(f"{said} is nested too deeply.") from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError) as error:  # `!!int x` and the like
        raise InputError(f"{said} is not YAML: {cut(str(error))}.") from error
    if not isinstance(recipe, dict):
        held = "nothing" if recipe is None else kind(recipe)
        raise InputError(f"{said} holds {held}; a recipe is a mapping of keys to values.")
    return recipe


def check_env(path: str | Path, env: Any) -> None:
    """Raise `ValueError` if a recipe sets a variable that is not one of [`SAFE_ENV`], or sets it to no text."""
    if not isinstance(env, dict | None):
        raise InputError(f"{path}: env={short(env)} is {kind(env)}, and env takes a mapping of variables to text.")
    unsafe = sorted(set(map(str, env or {})) - SAFE_ENV)
    if unsafe:
        raise InputError(
            f"{path}: env sets {cut(', '.join(unsafe), 100)}, which a recipe may not: set it in the shell. A recipe "
            f"may set {', '.join(sorted(SAFE_ENV))}."
        )
    for name, value in (env or {}).items():
        if not isinstance(value, str | int | float) or not str(value).isprintable():
            raise InputError(f"{path}: env: {name}={short(value)} is {kind(value)}, and a variable takes text.")


def check_runs_no_code(path: str | Path, key: str, value: Any, hint: Any) -> None:
    """
    Recipes are passed around, so none may make the machine run code that is not installed on it. Text that the parser
    turns into a mapping is looked at as that mapping. Raises `ValueError`: a value does, at any depth. On the command
    line, where users type it themselves, it is allowed.
    """
    if isinstance(value, str) and takes_mapping(hint):
        value = json_mapping(path, key, value)
    for names, inner in _values(path, key, value):
        last, does = names[-1], None
        chosen = next((name for name in names if name.endswith("_implementation")), None)
        if last in SWITCHES and inner not in (None, False, *(("false", "False") if len(names) == 1 else ())):
            does = SWITCHES[last]
        elif isinstance(inner, str) and "/" in inner and chosen:
            last, does = chosen, "download a kernel and run it"
        elif last == "backend" and isinstance(inner, str) and "." in inner:
            does = "import a module"  # DeepSpeed's compile.backend
        said = f"{path}: {'' if len(names) == 1 or last == key else f'{key}: '}{cut(last, 60)}={short(inner)}"
        cure = f"If you trust it, give --{key} on the command line."
        if does is not None:
            raise InputError(f"{said} would {does}, which a recipe may not ask for. {cure}")
        is_rate = isinstance(inner, int | float) and RATES.search(last)
        if names[:-1] == ("model_init_kwargs",) and not is_rate and last not in {*INIT, *SWITCHES}:
            known = ", ".join(sorted(INIT))
            raise InputError(f"{said}: of a model's arguments a recipe may give {known}, and rates of dropout. {cure}")


def _values(path: str | Path, key: str, value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """A value and every value inside it, each with the keys that lead to it."""
    left, count = [((str(key),), value)], 0
    while left:
        names, inner = left.pop()
        count += 1
        if count > MOST or len(names) > DEEPEST:
            raise InputError(f"{path}: {key} is {kind(value)} that is too large, or holds itself. Shorten it.")
        yield names, inner
        items = inner.items() if isinstance(inner, dict) else enumerate(inner) if isinstance(inner, list) else ()
        left += [((*names, str(name)), one) for name, one in items]


def takes_mapping(hint: Any) -> bool:
    """Whether a type is that of a mapping, or allows one."""
    return dict in (hint, typing.get_origin(hint)) or any(map(takes_mapping, typing.get_args(hint)))


def json_mapping(path: str | Path, key: str, text: str) -> dict[str, Any]:
    """The mapping that the parser makes of a key's text, JSON or the path of a file of it; else a `ValueError`."""
    try:
        found = parse_json(read_text(text) if key in FILES and not text.startswith("{") else text)
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    other = ", or the path of a file of one" if key in FILES else ""
    raise InputError(f"{path}: {key}={short(text)} is not a JSON object. Write a mapping{other}.")


def nearest(name: str, known: Iterable[str]) -> str:
    """`" (did you mean 'x'?)"`, or an empty string; upper and lower case are alike."""
    by_lower = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f" (did you mean {by_lower[close[0]]!r}?)" if close else ""


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
        return isinstance(value, float) or fits(value, int)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    if hint in (bool, str, list, dict) or origin in (list, dict):
        return isinstance(value, origin or hint)
    return True  # enumerations and the like: checked where they are used


def kind(value: Any) -> str:
    """The type of a value in the words of a recipe's author."""
    if value is None:
        return "empty"
    if isinstance(value, int) and abs(value) >= 2**63:
        return "a number that is too large"
    return TYPES.get(type(value), type(value).__name__)


def spelt(hint: Any) -> str:
    """The values that a type takes, in these words."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    words = ((TYPES | {type(None): "null"}).get(typing.get_origin(option) or option, "text") for option in options)
    return " or ".join(dict.fromkeys(words))
