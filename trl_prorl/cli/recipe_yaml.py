"""
Read a recipe with its base. Recipes are shared, so a recipe must not run code that is not installed; the command line
may. Imports nothing slow.
"""

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..keys import cure_of
from ..run.log_files import read_yaml
from ..text import cut, parse_json, short


BASE = "base"  # the key that names another recipe, whose keys this one inherits
# Variables that a recipe may set. None of them can make a library or a child process run code.
SAFE_ENV = frozenset(
    "CUDA_VISIBLE_DEVICES OMP_NUM_THREADS TOKENIZERS_PARALLELISM HF_HUB_OFFLINE PYTORCH_CUDA_ALLOC_CONF WANDB_PROJECT "
    "WANDB_ENTITY WANDB_MODE WANDB_NAME TRACKIO_PROJECT".split()
)
# Keys, at any depth, that a recipe may only switch off. The text is the effect of any other value.
SWITCHES = {
    "trust_remote_code": "run code that comes with a model",
    "use_kernels": "download kernels and run them",
    "kernel_config": "download kernels and run them",
    "allow_all_kernels": "download kernels and run them",
    "custom_generate": "run code that comes with a model",
    "allow_weak_sandbox": "let model-written code read this user's files",
}
# Arguments of `from_pretrained` that a recipe may set. None of them names code or a file that is read with pickle.
INIT = frozenset(
    "attn_implementation device_map dtype max_memory max_position_embeddings revision rope_parameters subfolder "
    "torch_dtype use_cache variant".split()
)
# Parts of the names of random rates, which are allowed, too: a model with dropout needs them (cli/dropout.py).
RATES = re.compile("drop|jitter|noise")
FILES = ("accelerator_config", "deepspeed", "fsdp_config")  # the text of these keys may be the path of a JSON file

Layers = list[tuple[Path, dict[str, Any]]]  # a recipe's files with their keys; the base, if any, comes first


def load_recipe(path: str | Path) -> Layers:
    """
    Read a recipe, and its base if it names one. Raises `ValueError`: a file is missing or no mapping, or the base has
    a base.
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
    """Return the merged keys of a recipe, unchecked."""
    return merge(load_recipe(path))


def set_variables(keys: dict[str, Any]) -> None:
    """Set the variables of `env`, and remove that key. Some variables are read only when a library is imported."""
    os.environ.update({name: str(value) for name, value in (keys.pop("env", None) or {}).items()})


def check_recipe(layers: Layers, names: Collection[str]) -> None:
    """
    Raise `ValueError` for an unknown key (unless `names` is empty), a variable that is not allowed, or a value that
    would run code.
    """
    for file, keys in layers:
        for key, value in keys.items():
            if key == "env":
                _check_env(file, value)
            elif key != BASE:
                check_runs_no_code(file, key, value)
                if names and key not in names:
                    raise InputError(f"{file}: unknown key {short(key)}{cure_of(str(key), [*names, BASE])}.")
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
    return read_yaml(path)


def check_runs_no_code(file: Path, key: str, value: Any) -> None:
    """
    Raise `ValueError` for a value that would run code, at any depth. The YAML parser limits aliases.

    Raises:
        `ValueError`: A value would run code.
    """
    if isinstance(value, str) and (key in FILES or value.lstrip().startswith("{")):
        value = _parse_mapping(file, key, value)
    if value in ("false", "False"):  # the parser reads the text of a whole key as a bool
        value = False
    left = [(str(key), value)]
    while left:
        name, inner = left.pop()
        danger = _find_danger(name, inner)
        if danger is not None:
            raise _not_allowed(file, key, name, inner, f"it would {danger}")
        if isinstance(inner, dict):
            left += [(str(one), held) for one, held in inner.items()]
        elif isinstance(inner, list):
            left += [(name, held) for held in inner]
    if key != "model_init_kwargs" or not isinstance(value, dict):
        return
    for name, given in value.items():
        is_rate = isinstance(given, int | float) and RATES.search(str(name))
        if not is_rate and name not in (*INIT, *SWITCHES):
            why = f"allowed are {', '.join(sorted(INIT))}, and dropout rates"
            raise _not_allowed(file, key, str(name), given, why)


def _find_danger(name: str, value: Any) -> str | None:
    """Return the effect of a value that runs code; `None` for another."""
    if name in SWITCHES and value not in (None, False):
        return SWITCHES[name]
    if name.endswith("_implementation") and "/" in str(value):
        return "download a kernel and run it"
    if name == "backend" and isinstance(value, str) and "." in value:  # DeepSpeed's compile.backend
        return "import a module"
    return None


def _not_allowed(file: Path, key: str, name: str, value: Any, why: str) -> InputError:
    place = key if name == key else f"{key}: {cut(name, 60)}"
    return InputError(
        f"{file}: {place}={short(value)} is not allowed in a recipe: {why}. If you trust it, set --{key} on the "
        "command line."
    )


def _parse_mapping(file: Path, key: str, text: str) -> dict[str, Any]:
    """Return the mapping in a key's text, which is JSON or the path of a JSON file."""
    is_path = not text.lstrip().startswith("{")
    try:
        mapping = parse_json(Path(text).read_text() if is_path else text)
    except ValueError:
        mapping = None
    if isinstance(mapping, dict):
        return mapping
    other = ", or the path of a JSON file" if key in FILES else ""
    raise InputError(f"{file}: {key}={short(text)} is not a JSON object. Write a mapping{other}.")
