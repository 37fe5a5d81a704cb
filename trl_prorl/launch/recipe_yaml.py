"""A recipe's file, read with its base. Nothing of its keys is checked, and nothing that takes long is imported."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..record.run_files import MAX_YAML_BYTES, parse_yaml, read_text
from ..text import cut, short
from .value_types import kind


BASE = "base"  # the key that names another recipe, whose keys this one takes


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


def _read_mapping(path: Path, said: str) -> dict[str, Any]:
    """Return the keys of one file. `said`: how an error names it."""
    if not os.path.isfile(path):
        place = "" if said.endswith(str(path)) else f", {cut(str(path))}"
        raise InputError(f"{said}: there is no such file{place}.")
    keys = parse_yaml(read_text(path, MAX_YAML_BYTES), said)
    if not isinstance(keys, dict):
        held = "nothing" if keys is None else kind(keys)
        raise InputError(f"{said} holds {held}; a recipe is a mapping of keys to values.")
    return keys
