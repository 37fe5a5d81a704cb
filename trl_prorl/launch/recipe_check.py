"""
Refuses what is wrong with a recipe or a command line, in one line with the key, the value and the cure. Nothing that
takes long is imported, so that the complaint comes before anything else happens.
"""

import os
import re
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..errors import InputError
from ..keys import BARE_WORDS, RENAMED
from ..record.run_files import read_text
from ..text import cut, nearest, parse_json, short
from ..upstream_values import options_of


# Variables that a recipe may set: none by which a library or a child process could be made to run code.
SAFE_ENV = frozenset(
    "CUDA_VISIBLE_DEVICES OMP_NUM_THREADS TOKENIZERS_PARALLELISM HF_HUB_OFFLINE PYTORCH_CUDA_ALLOC_CONF WANDB_PROJECT "
    "WANDB_ENTITY WANDB_MODE WANDB_NAME TRACKIO_PROJECT".split()
)


BASE = "base"  # the key that names another recipe, whose keys this one takes

# Keys of text that a recipe may write as a bare on, off or true, which YAML reads as true or false.
BARE = (*BARE_WORDS, "resume_from_checkpoint")
AUTO = "auto"  # a value of bf16 in a recipe, see precision.py
# What the parser takes for true and false, in any case.
TRUE_OR_FALSE = {"yes": True, "true": True, "t": True, "y": True, "1": True}
TRUE_OR_FALSE |= {"no": False, "false": False, "f": False, "n": False, "0": False}

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
TYPES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a mapping",
}
MAX_DEPTH = 50  # values inside values
MAX_VALUES = 20_000  # of one key


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


@dataclass(frozen=True)
class Recipe:
    """
    A recipe as it was read.

    Attributes:
        layers (`list[tuple[Path, dict[str, Any]]]`): Its files with their own keys, the base first if there is one.
    """

    layers: list[tuple[Path, dict[str, Any]]]

    @property
    def keys(self) -> dict[str, Any]:
        """The keys of the base and its own, which win. `null` unsets a key of the base, which has its default then."""
        found: dict[str, Any] = {}
        for _, keys in self.layers:
            for key, value in keys.items():
                if value is None and key in found:
                    del found[key]
                elif key != BASE:
                    found[key] = value
        return found


def load_recipe(path: str | Path) -> Recipe:
    """
    Read a recipe, and its base if it names one.

    Raises:
        `ValueError`: There is no such file, it holds no mapping, or the base has a base.
    """
    path = Path(path)
    keys = _read_mapping(path, f"--config {path}")
    if BASE not in keys:
        return Recipe([(path, keys)])
    name = keys[BASE]
    said = f"{path}: {BASE}={short(name)}"
    if not isinstance(name, str):
        raise InputError(f"{said} is {kind(name)}, and {BASE} takes the path of a recipe, relative to {path}.")
    base = path.parent / name
    keys_of_base = _read_mapping(base, said)
    if BASE in keys_of_base:
        raise InputError(f"{said} has a base of its own, {short(keys_of_base[BASE])}; one level is all there is.")
    return Recipe([(base, keys_of_base), (path, keys)])


def read_recipe(path: str | Path) -> dict[str, Any]:
    """Return the keys of a recipe, see [`load_recipe`] and [`Recipe.keys`]; nothing is checked."""
    return load_recipe(path).keys


def check_recipe(path: str | Path, hints: Mapping[str, Any]) -> dict[str, Any]:
    """
    Read a recipe and check all of it.

    Args:
        path (`str` or `Path`): Its file.
        hints (`Mapping[str, Any]`): The type of every key.

    Returns:
        `dict[str, Any]`: Its keys.

    Raises:
        `ValueError`: As [`load_recipe`], [`check_keys`] and [`check_types`].
    """
    recipe = load_recipe(path)
    check_keys(recipe, hints)
    check_types(recipe, hints)
    return recipe.keys


def check_keys(recipe: Recipe, names: Collection[str]) -> None:
    """
    Check all of a recipe that can be checked without the types of its keys.

    Args:
        recipe (`Recipe`): The recipe.
        names (`Collection[str]`): The names of all keys.

    Raises:
        `ValueError`: It has an unknown key, sets a variable that it may not, or would run code. The line names the
            file, the key and the value.
    """
    for file, keys in recipe.layers:
        check_env(file, keys.get("env"))
        for key, value in keys.items():
            if key in ("env", BASE):
                continue
            check_runs_no_code(file, key, value)
            if key not in names:
                cure = f": {RENAMED[key]}" if key in RENAMED else nearest(cut(str(key)), [*names, BASE])
                raise InputError(f"{file}: unknown key {short(key)}{cure}.")
            if value is False and key.endswith("_strategy"):
                raise InputError(f'{file}: {key}: no is false in YAML. Put it in quotes: {key}: "no".')


def check_types(recipe: Recipe, hints: Mapping[str, Any]) -> None:
    """
    Check the values of a recipe against the types of its keys.

    Args:
        recipe (`Recipe`): The recipe.
        hints (`Mapping[str, Any]`): The types by key; other keys are left out.

    Raises:
        `ValueError`: A value is of another type, or is text that stands for a mapping which would run code. The line
            names the file, the key, the value and the type.
    """
    below: set[str] = set()
    for file, keys in recipe.layers:
        for key, value in keys.items():
            if key not in hints or (value is None and key in below):
                continue
            hint = hints[key]
            if isinstance(value, str) and takes_mapping(hint):
                check_runs_no_code(file, key, json_mapping(file, key, value))
            if key in BARE:
                hint = hint | bool
            is_auto = key == "bf16" and value == AUTO
            if not fits(value, hint) and not is_auto:
                raise InputError(f"{file}: {key}={short(value)} is {kind(value)}, and {key} takes {spell_type(hint)}.")
        below |= keys.keys()
    check_auto_precision(recipe.keys)


def check_auto_precision(keys: Mapping[str, Any]) -> None:
    """Refuse `bf16: auto` in the keys of a recipe that gives `dtype`, too, or is not for a CPU."""
    if keys.get("bf16") != AUTO:
        return
    if "dtype" in keys:
        raise InputError(f"bf16: auto chooses dtype, too, and dtype={keys['dtype']!r} is given. Leave dtype out.")
    if keys.get("use_cpu") is not True:
        raise InputError("bf16: auto chooses for a CPU, and use_cpu is not true. Leave bf16 out; a GPU has it true.")


def read_options(arguments: list[str], hints: Mapping[str, Any]) -> dict[str, Any]:
    """
    Read the keys that a command line sets, as far as their types are known.

    Args:
        arguments (`list[str]`): The command line; [`check_options`] has found every option in it.
        hints (`Mapping[str, Any]`): The types by key.

    Returns:
        `dict[str, Any]`: A value for each key; a key that the parser will complain of is left out.

    Raises:
        `ValueError`: A value is of another type. The line names the option, the value and the type.
    """
    found = {}
    for key, words in words_of_options(arguments).items():
        positive = key.removeprefix("no_")
        if key not in hints and positive in hints:
            found[positive] = False
        elif key in hints and not words and fits(True, hints[key]):
            found[key] = True
        elif key in hints and words:
            value = words[0] if len(words) == 1 else words
            if not fits(value, hints[key]):
                taken = spell_type(hints[key]).removesuffix(" or null")
                raise InputError(f"--{key} {short(value)} cannot be read: {key} takes {taken}.")
            found[key] = value
    return found


def words_of_options(arguments: list[str]) -> dict[str, list[str]]:
    """Return the words that follow each option of a command line, by its key. The last of the same options counts."""
    words_of: dict[str, list[str]] = {}
    words: list[str] = []
    for argument in arguments:
        if is_option(argument):
            name, equals, value = argument.partition("=")
            words = [value] if equals else []
            words_of[name.lstrip("-").replace("-", "_")] = words
        else:
            words.append(argument)
    return words_of


def split_config_option(arguments: Iterable[str]) -> list[str]:
    """Split each `--config=PATH` of a command line into two words."""
    words: list[str] = []
    for argument in arguments:
        if argument.startswith("--config="):
            words += argument.split("=", 1)
        else:
            words.append(argument)
    return words


def check_config_option(arguments: list[str]) -> list[str]:
    """
    Split `--config=PATH` of a command line into two words.

    Raises:
        `ValueError`: The command line begins with no option, or does not name one recipe.
    """
    words = split_config_option(arguments)
    if words and not words[0].startswith("-"):
        cure = f": write --config {words[0]}" if words[0].endswith((".yaml", ".yml")) else ""
        raise InputError(f"{words[0]!r} follows no option{cure}.")
    if "--config" in words and words[-1] == "--config":
        raise InputError("--config needs the path of a recipe after it.")
    if words.count("--config") > 1:
        raise InputError("--config is given twice; a run has one recipe.")
    return words


def check_options(arguments: list[str], flags: Collection[str]) -> None:
    """Raise a `ValueError` that names the first option of a command line that is not one of the flags."""
    for argument in arguments:
        name = argument.split("=")[0]
        key = name.lstrip("-").replace("-", "_")
        if is_option(argument) and name not in flags:
            cure = f": {RENAMED[key]}" if key in RENAMED else nearest(cut(name), flags)
            raise InputError(f"unknown option {short(argument)}{cure}.")


def is_option(argument: str) -> bool:
    """Return whether a word of a command line is the name of an option; a negative number is a value."""
    return argument.startswith("--") or re.match(r"-[a-z]\w", argument) is not None


def _read_mapping(path: Path, said: str) -> dict[str, Any]:
    """Return the keys of one file. `said`: how an error names it."""
    if not os.path.isfile(path):
        place = "" if said.endswith(str(path)) else f", {cut(str(path))}"
        raise InputError(f"{said}: there is no such file{place}.")
    text = read_text(path)
    try:
        keys = yaml.load(text, UniqueKeys)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise InputError(f"{said} is not YAML: {cut(error.problem or str(error))}{where}.") from error
    except RecursionError:
        raise InputError(f"{said} is nested too deeply.") from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError) as error:  # `!!int x` and the like
        raise InputError(f"{said} is not YAML: {cut(str(error))}.") from error
    if not isinstance(keys, dict):
        held = "nothing" if keys is None else kind(keys)
        raise InputError(f"{said} holds {held}; a recipe is a mapping of keys to values.")
    return keys


def check_env(path: str | Path, env: Any) -> None:
    """Raise `ValueError` if a recipe sets a variable that is not one of [`SAFE_ENV`], or sets it to no text."""
    if env is None:
        return
    if not isinstance(env, dict):
        raise InputError(f"{path}: env={short(env)} is {kind(env)}, and env takes a mapping of variables to text.")
    unsafe = sorted({str(name) for name in env} - SAFE_ENV)
    if unsafe:
        raise InputError(
            f"{path}: env sets {cut(', '.join(unsafe), 100)}, which a recipe may not: set it in the shell. A recipe "
            f"may set {', '.join(sorted(SAFE_ENV))}."
        )
    for name, value in env.items():
        if not isinstance(value, str | int | float) or not str(value).isprintable():
            raise InputError(f"{path}: env: {name}={short(value)} is {kind(value)}, and a variable takes text.")


def check_runs_no_code(path: str | Path, key: str, value: Any) -> None:
    """
    Check that no value of a key, at any depth, makes the machine run code that is not installed on it, because recipes
    are passed around. On the command line, where users type it themselves, it is allowed.

    Raises:
        `ValueError`: A value does. The line names the file, the key and the value.
    """
    cure = f"If you trust it, give --{key} on the command line."
    for way, inner in _values_inside(path, key, value):
        last, action = _action_of(way, inner)
        place = cut(last, 60)
        if len(way) > 1 and last != key:
            place = f"{key}: {place}"
        said = f"{path}: {place}={short(inner)}"
        if action is not None:
            raise InputError(f"{said} would {action}, which a recipe may not ask for. {cure}")
        if way[:-1] == ("model_init_kwargs",) and last not in INIT and last not in SWITCHES:
            is_rate = isinstance(inner, int | float) and RATES.search(last)
            if not is_rate:
                known = ", ".join(sorted(INIT))
                raise InputError(
                    f"{said}: of a model's arguments a recipe may give {known}, and rates of dropout. {cure}"
                )


def _action_of(way: tuple[str, ...], value: Any) -> tuple[str, str | None]:
    """
    Return what a value inside a key makes the machine do.

    Args:
        way (`tuple[str, ...]`): The keys that lead to it.
        value (`Any`): The value.

    Returns:
        The key that says so, usually the last one, and what it does; `None` if that is harmless.
    """
    last = way[-1]
    is_off = value in (None, False) or (len(way) == 1 and value in ("false", "False"))
    if last in SWITCHES and not is_off:
        return last, SWITCHES[last]
    if isinstance(value, str):
        implementation = next((name for name in way if name.endswith("_implementation")), None)
        if implementation is not None and "/" in value:
            return implementation, "download a kernel and run it"
        if last == "backend" and "." in value:
            return last, "import a module"  # DeepSpeed's compile.backend
    return last, None


def _values_inside(path: str | Path, key: str, value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield a value and every value inside it, each with the keys that lead to it."""
    left = [((str(key),), value)]
    count = 0
    while left:
        way, inner = left.pop()
        count += 1
        if count > MAX_VALUES or len(way) > MAX_DEPTH:
            raise InputError(f"{path}: {key} is {kind(value)} that is too large, or holds itself. Shorten it.")
        yield way, inner
        if isinstance(inner, dict):
            left += [((*way, str(name)), one) for name, one in inner.items()]
        elif isinstance(inner, list):
            left += [((*way, str(place)), one) for place, one in enumerate(inner)]


def takes_mapping(hint: Any) -> bool:
    """Return whether a type is that of a mapping, or allows one."""
    return dict in (hint, typing.get_origin(hint)) or any(map(takes_mapping, typing.get_args(hint)))


def json_mapping(path: str | Path, key: str, text: str) -> dict[str, Any]:
    """
    Return the mapping that the parser makes of a key's text, JSON or the path of a file of it; else a `ValueError`.
    """
    may_be_path = key in FILES and not text.startswith("{")
    try:
        mapping = parse_json(read_text(text) if may_be_path else text)
    except ValueError:
        mapping = None
    if isinstance(mapping, dict):
        return mapping
    other = ", or the path of a file of one" if key in FILES else ""
    raise InputError(f"{path}: {key}={short(text)} is not a JSON object. Write a mapping{other}.")


def fits(value: Any, hint: Any) -> bool:
    """
    Return whether a YAML value fits a field's type. Text fits where the parser can convert it, and one word may stand
    for a list (`lora_target_modules: all-linear`).
    """
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, option) for option in typing.get_args(hint))
    if hint is type(None):
        return value is None
    if isinstance(value, str):
        return _can_be_read(value, hint)
    if hint is float:
        return isinstance(value, float) or fits(value, int)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    if hint in (bool, str, list, dict) or origin in (list, dict):
        return isinstance(value, origin or hint)
    return True  # enumerations and the like: checked where they are used


def _can_be_read(text: str, hint: Any) -> bool:
    if list in (hint, typing.get_origin(hint)):
        return all(_can_be_read(text, option) for option in typing.get_args(hint))
    try:
        read_text_as(text, hint)
    except (ValueError, OverflowError):
        return False
    return True


def read_text_as(text: str, hint: Any) -> Any:
    """
    Return what the parser makes of text for a type. Of types that are no number and no truth value the text stays.

    Raises:
        `ValueError`: It complains of it.
    """
    options = options_of(hint)
    if str in options:
        return text
    for option in options:
        if option in (int, float):
            return option(text)
        if option is bool:
            if text.lower() not in TRUE_OR_FALSE:
                raise ValueError(f"{text} is neither true nor false")
            return TRUE_OR_FALSE[text.lower()]
    return text


def read_as(value: Any, hint: Any) -> Any:
    """Return a value that [`fits`] as the parser reads it: text as a number or a truth value, in a list, too."""
    if isinstance(value, str):
        return read_text_as(value, hint)
    for option in options_of(hint):
        if isinstance(value, list) and typing.get_origin(option) is list:
            return [read_as(one, typing.get_args(option)[0]) for one in value]
    return value


def kind(value: Any) -> str:
    """Return the type of a value in the words of a recipe's author."""
    if value is None:
        return "empty"
    if isinstance(value, int) and abs(value) >= 2**63:
        return "a number that is too large"
    return TYPES.get(type(value), type(value).__name__)


def spell_type(hint: Any) -> str:
    """Return the values that a type takes, in these words."""
    words = []
    for option in options_of(hint):
        if option is types.NoneType:
            words.append("null")
        else:
            words.append(TYPES.get(typing.get_origin(option) or option, "text"))
    return " or ".join(dict.fromkeys(words))
