"""
A recipe's file, read with its base and checked as far as names go. Nothing that takes long is imported, so that a
complaint comes before anything else happens.
"""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..keys import RENAMED
from ..record.run_files import MAX_YAML_BYTES, parse_yaml, read_text
from ..text import cut, nearest, short
from .no_code import check_runs_no_code


BASE = "base"  # the key that names another recipe, whose keys this one takes
# Variables that a recipe may set: none by which a library or a child process could be made to run code.
SAFE_ENV = frozenset(
    "CUDA_VISIBLE_DEVICES OMP_NUM_THREADS TOKENIZERS_PARALLELISM HF_HUB_OFFLINE PYTORCH_CUDA_ALLOC_CONF WANDB_PROJECT "
    "WANDB_ENTITY WANDB_MODE WANDB_NAME TRACKIO_PROJECT".split()
)

Layers = list[tuple[Path, dict[str, Any]]]  # a recipe's files with their own keys, the base first if there is one


def load_recipe(path: str | Path) -> Layers:
    """
    Read a recipe, and its base if it names one.

    Raises:
        `ValueError`: There is no such file, it holds no mapping, or the base has a base.
    """
    path = Path(path)
    keys = _read_mapping(path, f"--config {path}")
    if BASE not in keys:
        return [(path, keys)]
    name = keys[BASE]
    said = f"{path}: {BASE}={short(name)}"
    if not isinstance(name, str):
        raise InputError(f"{said}: {BASE} takes the path of a recipe, relative to {path}.")
    base = path.parent / name
    keys_of_base = _read_mapping(base, said)
    if BASE in keys_of_base:
        raise InputError(f"{said} has a base of its own, {short(keys_of_base[BASE])}; one level is all there is.")
    return [(base, keys_of_base), (path, keys)]


def merge(layers: Layers) -> dict[str, Any]:
    """Return the keys of a base and of its recipe, which win. `null` unsets a key of the base: its default holds."""
    found: dict[str, Any] = {}
    for _, keys in layers:
        for key, value in keys.items():
            if value is None and key in found:
                del found[key]
            elif key != BASE:
                found[key] = value
    return found


def read_recipe(path: str | Path) -> dict[str, Any]:
    """Return the keys of a recipe, see [`load_recipe`] and [`merge`]; no key is checked."""
    return merge(load_recipe(path))


def check_recipe(layers: Layers, names: Collection[str]) -> None:
    """
    Check what needs no type of a key.

    Args:
        layers (`Layers`): The recipe.
        names (`Collection[str]`): The names of all keys; empty: they are not known, and none is refused.

    Raises:
        `ValueError`: It has an unknown key, sets a variable that it may not, or would run code. The line names the
            file, the key and the value.
    """
    for file, keys in layers:
        for key, value in keys.items():
            if key == "env":
                _check_env(file, value)
            elif key != BASE:
                check_runs_no_code(file, key, value)
                if names and key not in names:
                    cure = f": {RENAMED[key]}" if key in RENAMED else nearest(cut(str(key)), [*names, BASE])
                    raise InputError(f"{file}: unknown key {short(key)}{cure}.")
                if value is False and key.endswith("_strategy"):
                    raise InputError(f'{file}: {key}: no is false in YAML. Put it in quotes: {key}: "no".')


def _check_env(file: Path, env: Any) -> None:
    if not isinstance(env, dict | None):
        raise InputError(f"{file}: env={short(env)}: env takes a mapping of variables to text.")
    for name, value in (env or {}).items():
        if name not in SAFE_ENV:
            raise InputError(
                f"{file}: env sets {cut(str(name), 100)}, which a recipe may not: set it in the shell. It may set "
                f"{', '.join(sorted(SAFE_ENV))}."
            )
        if not isinstance(value, str | int | float) or not str(value).isprintable():
            raise InputError(f"{file}: env: {name}={short(value)}: a variable takes text.")


def _read_mapping(path: Path, said: str) -> dict[str, Any]:
    """Return the keys of one file. `said`: how an error names it."""
    if not os.path.isfile(path):
        place = "" if said.endswith(str(path)) else f", {cut(str(path))}"
        raise InputError(f"{said}: there is no such file{place}.")
    keys = parse_yaml(read_text(path, MAX_YAML_BYTES), said)
    if not isinstance(keys, dict):
        raise InputError(f"{said} holds {short(keys)}; a recipe is a mapping of keys to values.")
    return keys
