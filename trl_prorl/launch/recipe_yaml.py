"""
Read a recipe with its base, and check the names of its keys. Imports nothing slow, so that errors come first.
"""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..keys import RENAMED
from ..run_files import MAX_YAML_BYTES, parse_yaml, read_text
from ..text import cut, nearest, short
from .no_code import check_runs_no_code


BASE = "base"  # the key that names another recipe, whose keys this one inherits
# Variables that a recipe may set. None of them can make a library or a child process run code.
SAFE_ENV = frozenset(
    "CUDA_VISIBLE_DEVICES OMP_NUM_THREADS TOKENIZERS_PARALLELISM HF_HUB_OFFLINE PYTORCH_CUDA_ALLOC_CONF WANDB_PROJECT "
    "WANDB_ENTITY WANDB_MODE WANDB_NAME TRACKIO_PROJECT".split()
)

Layers = list[tuple[Path, dict[str, Any]]]  # a recipe's files with their keys; the base, if any, comes first


def load_recipe(path: str | Path) -> Layers:
    """
    Read a recipe, and its base if it names one.

    Raises:
        `ValueError`: The file does not exist or contains no mapping, or the base has a base.
    """
    path = Path(path)
    keys = _read_mapping(path, f"--config {path}")
    if BASE not in keys:
        return [(path, keys)]
    name = keys[BASE]
    said = f"{path}: {BASE}={short(name)}"
    if not isinstance(name, str):
        raise InputError(f"{said} must be the path of a recipe, relative to {path}.")
    base = path.parent / name
    keys_of_base = _read_mapping(base, said)
    if BASE in keys_of_base:
        raise InputError(f"{said} has a base itself ({short(keys_of_base[BASE])}). Only one level is supported.")
    return [(base, keys_of_base), (path, keys)]


def merge(layers: Layers) -> dict[str, Any]:
    """Merge a base and its recipe. The recipe wins; `null` resets a key of the base to its default."""
    found: dict[str, Any] = {}
    for _, keys in layers:
        for key, value in keys.items():
            if value is None and key in found:
                del found[key]
            elif key != BASE:
                found[key] = value
    return found


def read_recipe(path: str | Path) -> dict[str, Any]:
    """Return the merged keys of a recipe, unchecked. See [`load_recipe`] and [`merge`]."""
    return merge(load_recipe(path))


def check_recipe(layers: Layers, names: Collection[str]) -> None:
    """
    Check the names of keys, the variables of `env`, and that nothing runs code.

    Args:
        layers (`Layers`): The recipe.
        names (`Collection[str]`): The names of all keys. If empty, names are not checked.

    Raises:
        `ValueError`: A key is unknown, a variable is not allowed, or a value would run code.
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
                    raise InputError(f'{file}: {key}: no means false in YAML. Write it in quotes: {key}: "no".')


def _check_env(file: Path, env: Any) -> None:
    if not isinstance(env, dict | None):
        raise InputError(f"{file}: env={short(env)} must be a mapping of environment variables to text.")
    for name, value in (env or {}).items():
        if name not in SAFE_ENV:
            raise InputError(
                f"{file}: env: {cut(str(name), 100)} is not allowed in a recipe: set it in the shell. Allowed are "
                f"{', '.join(sorted(SAFE_ENV))}."
            )
        if not isinstance(value, str | int | float) or not str(value).isprintable():
            raise InputError(f"{file}: env: {name}={short(value)} must be text.")


def _read_mapping(path: Path, said: str) -> dict[str, Any]:
    """Return the keys of one file. `said` is its name in an error."""
    if not os.path.isfile(path):
        place = "" if said.endswith(str(path)) else f", {cut(str(path))}"
        raise InputError(f"{said}: there is no such file{place}.")
    keys = parse_yaml(read_text(path, MAX_YAML_BYTES), said)
    if not isinstance(keys, dict):
        raise InputError(f"{said} must be a mapping of keys to values, not {short(keys)}.")
    return keys
