"""Read a recipe with its base. Recipes are shared: what would run code that is not installed is for the command line."""

import json
import os
import re
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..run.log_files import read_json, read_yaml


BASE = "base"  # the key that names another recipe, whose keys this one inherits
SWITCHES = ("trust_remote_code", "use_kernels", "kernel_config", "allow_all_kernels", "custom_generate")
SWITCHES += ("allow_weak_sandbox",)
SAFE_ENV = {"CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "WANDB_PROJECT", "TRACKIO_PROJECT"}
FILES = ("accelerator_config", "deepspeed", "fsdp_config")  # their text may be the path of a JSON file
RATES = re.compile("drop|jitter|noise")  # in the names of random rates


def read_recipe(path: str | Path) -> dict[str, Any]:
    """Return a recipe's keys over those of its base; `null` resets a key. Raises `InputError`: it would run code."""
    path = Path(path)
    keys = read_yaml(path)
    base = keys.pop(BASE, None)
    found = read_yaml(path.parent / base) if base is not None else {}
    found |= keys
    env = found.pop("env", None) or {}
    if not SAFE_ENV >= env.keys():
        raise InputError(f"{path}: env: set {', '.join(env.keys() - SAFE_ENV)} in the shell, not in a recipe.")
    os.environ.update({name: str(value) for name, value in env.items()})
    for key, value in found.items():
        check_runs_no_code(path, key, value)
    return {key: value for key, value in found.items() if value is not None}


def check_runs_no_code(path: Path, key: str, value: Any) -> None:
    """Raise [`InputError`] for a value that would run code, at any depth, also as JSON text or in a JSON file."""
    if isinstance(value, str) and (key in FILES or value.lstrip().startswith("{")):
        value = json.loads(value) if value.lstrip().startswith("{") else read_json(value)
    left = [(key, value)]
    while left:
        name, inner = left.pop()
        is_kernel = name.endswith("_implementation") and "/" in str(inner)  # downloaded, and run
        is_module = name == "backend" and "." in str(inner)  # DeepSpeed's compile.backend is imported
        if is_kernel or is_module or (name in SWITCHES and inner not in (None, False)):
            raise InputError(f"{path}: {key}: {name}={inner!r} may run code: if you trust it, set --{key} yourself.")
        if isinstance(inner, dict):
            left += [(str(one), content) for one, content in inner.items()]
        elif isinstance(inner, list):
            left += [(name, content) for content in inner]
