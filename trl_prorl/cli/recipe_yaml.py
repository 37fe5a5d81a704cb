"""Read a recipe with its base. Recipes are shared: what would run code that is not installed is for the command line."""

import os
import re
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..run.log_files import read_yaml


BASE = "base"  # the key that names another recipe, whose keys this one inherits
SWITCHES = ("trust_remote_code", "use_kernels", "kernel_config", "allow_all_kernels", "custom_generate")
SWITCHES += ("allow_weak_sandbox",)
SAFE_ENV = {"CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "WANDB_PROJECT", "TRACKIO_PROJECT"}
RATES = re.compile("drop|jitter|noise")  # in the names of random rates


def read_recipe(path: str | Path) -> dict[str, Any]:
    """Return a recipe's keys over those of its base; `null` resets a key. Raises `InputError`: it would run code."""
    path = Path(path)
    keys = read_yaml(path)
    base = keys.pop(BASE, None)
    found = read_yaml(path.parent / base) if base is not None else {}
    found |= keys
    env = found.pop("env", None) or {}
    os.environ.update({name: str(env[name]) for name in SAFE_ENV & env.keys()})
    for key, value in found.items():
        if any(word in f"{key} {value}" for word in SWITCHES) and value is not False:
            raise InputError(f"{path}: {key}={value!r} may run code: if you trust it, set --{key} on the command line.")
    return {key: value for key, value in found.items() if value is not None}
