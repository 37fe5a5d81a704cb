"""
Refuses what is wrong with a recipe, in one line with the key, the value and the cure. Nothing that takes long is
imported, so that the complaint comes before anything else happens.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..keys import BARE_WORDS, RENAMED
from ..record.run_files import read_text
from ..text import cut, nearest, parse_json, short
from .recipe_yaml import BASE, Recipe, load_recipe
from .value_types import fits, kind, spell_type, takes_mapping


# Variables that a recipe may set: none by which a library or a child process could be made to run code.
SAFE_ENV = frozenset(
    "CUDA_VISIBLE_DEVICES OMP_NUM_THREADS TOKENIZERS_PARALLELISM HF_HUB_OFFLINE PYTORCH_CUDA_ALLOC_CONF WANDB_PROJECT "
    "WANDB_ENTITY WANDB_MODE WANDB_NAME TRACKIO_PROJECT".split()
)

# Keys of text that a recipe may write as a bare on, off or true, which YAML reads as true or false.
BARE = (*BARE_WORDS, "resume_from_checkpoint")
AUTO = "auto"  # a value of bf16 in a recipe, see precision.py

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
MAX_DEPTH = 50  # values inside values
MAX_VALUES = 20_000  # of one key


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
