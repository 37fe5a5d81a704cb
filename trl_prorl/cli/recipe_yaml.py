"""
Read a recipe with its bases. Recipes are shared, so a recipe must not run code that is not installed; the command line
may. Imports nothing slow.
"""

import json
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..keys import cure_of
from ..run.log_files import read_json, read_yaml
from ..text import cut, short


BASE = "base"  # the key that names another recipe, whose keys this one inherits
ENV = "env"  # TRL's key of variables, which would be set after the imports that read them
# Keys, at any depth, that a recipe may only switch off.
SWITCHES = (
    "trust_remote_code",
    "use_kernels",
    "kernel_config",
    "allow_all_kernels",
    "custom_generate",
    "allow_weak_sandbox",
)
# Arguments of `from_pretrained` that a recipe may set. None of them names code or a file that is read with pickle.
INIT = frozenset(
    "attn_implementation device_map dtype max_memory max_position_embeddings revision rope_parameters subfolder "
    "torch_dtype use_cache variant".split()
)
# Parts of the names of random rates, which are allowed, too: a model with dropout needs them (cli/dropout.py).
RATES = re.compile("drop|jitter|noise")
FILES = ("accelerator_config", "deepspeed", "fsdp_config")  # the text of these keys may be the path of a JSON file


def read_recipe(path: str | Path, names: Collection[str] = ()) -> dict[str, Any]:
    """
    Return a recipe's keys over those of its bases; `null` resets a key.

    Raises:
        `InputError`: A file is missing or no mapping, a key is not one of `names` (if given), or a value would run
        code.
    """
    keys: dict[str, Any] = {}
    for file, layer in reversed(read_layers(Path(path))):
        for key, value in layer.items():
            if key == ENV:
                raise InputError(f"{file}: {ENV}={short(value)}: a recipe sets no variables. Set them in the shell.")
            if names and key not in names:
                raise InputError(f"{file}: unknown key {short(key)}{cure_of(str(key), [*names, BASE])}.")
            check_runs_no_code(file, str(key), value)
        keys |= layer
    return {key: value for key, value in keys.items() if value is not None}


def read_layers(path: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Return a recipe's files with their keys: itself, its base, that one's base …"""
    layers = []
    read = set()
    while path.resolve() not in read:
        read.add(path.resolve())
        keys = read_yaml(path)
        base = keys.pop(BASE, None)
        layers.append((path, keys))
        if base is None:
            return layers
        path = path.parent / str(base)
    raise InputError(f"{layers[-1][0]}: {BASE}={short(base)} leads back to a recipe of which it is the base.")


def check_runs_no_code(file: Path, key: str, value: Any) -> None:
    """Raise [`InputError`] for a value that would run code, at any depth, also in JSON text or in a JSON file."""
    if key in FILES and isinstance(value, str) and not value.startswith("{"):
        value = read_json(value)
    value = parse_text(value)
    if value in ("false", "False"):  # argparse reads the text of a whole key as a bool, and no text inside
        value = False
    for name, inner in walk(key, value):
        if runs_code(name, inner):
            raise _not_allowed(file, key, name, inner, "it may run code")
    if key == "model_init_kwargs" and isinstance(value, dict):
        for name, argument in value.items():
            is_rate = isinstance(argument, int | float) and RATES.search(str(name))
            if not is_rate and name not in (*INIT, *SWITCHES):
                raise _not_allowed(file, key, str(name), argument, f"allowed are {', '.join(sorted(INIT))}")


def walk(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a key's value and those in it, each with its name, also in JSON text."""
    value = parse_text(value)
    yield name, value
    if isinstance(value, dict):
        for inner_name, inner in value.items():
            yield from walk(str(inner_name), inner)
    if isinstance(value, list):
        for inner in value:
            yield from walk(name, inner)


def parse_text(value: Any) -> Any:
    """Return the content of JSON text, as the libraries read it; other values unchanged."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        with suppress(ValueError):
            return json.loads(value)
    return value


def runs_code(name: str, value: Any) -> bool:
    is_kernel = name.endswith("_implementation") and "/" in str(value)  # downloaded from the Hub
    is_module = name == "backend" and isinstance(value, str) and "." in value  # DeepSpeed imports compile.backend
    return is_kernel or is_module or (name in SWITCHES and value not in (None, False))


def _not_allowed(file: Path, key: str, name: str, value: Any, why: str) -> InputError:
    place = key if name == key else f"{key}: {cut(name, 60)}"
    return InputError(
        f"{file}: {place}={short(value)} is not allowed in a recipe: {why}. If you trust it, set --{key} on the "
        "command line."
    )
