"""
A recipe cannot make the machine run code that is not installed on it, because recipes are shared. On the command line,
which users type themselves, it is allowed.
"""

import re
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..run_files import read_text
from ..text import cut, parse_json, short


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
RATES = re.compile("drop|jitter|noise")  # rates are allowed, too: a model with dropout needs them (launch/dropout.py)
FILES = ("accelerator_config", "deepspeed", "fsdp_config")  # the text of these keys may be the path of a JSON file


def check_runs_no_code(file: Path, key: str, value: Any) -> None:
    """
    Check every value inside a key's value, at any depth. The YAML parser limits aliases.

    Raises:
        `ValueError`: A value would run code.
    """
    if isinstance(value, str) and (key in FILES or value.lstrip().startswith("{")):
        value = _parse_mapping(file, key, value)
    left = [((str(key),), value)]
    while left:
        way, inner = left.pop()
        problem = _find_problem(way, inner)
        if problem is not None:
            name, why = problem
            place = f"{key}: {cut(name, 60)}" if len(way) > 1 and name != key else cut(name, 60)
            raise InputError(
                f"{file}: {place}={short(inner)} {why}. If you trust it, set --{key} on the command line."
            )
        if isinstance(inner, dict):
            left += [((*way, str(name)), one) for name, one in inner.items()]
        elif isinstance(inner, list):
            left += [((*way, str(place)), one) for place, one in enumerate(inner)]


def _find_problem(way: tuple[str, ...], value: Any) -> tuple[str, str] | None:
    """
    Return a key that is not allowed, usually the last one, and the reason; `None` if the value is allowed.

    Args:
        way (`tuple[str, ...]`): The keys that lead to the value.
        value (`Any`): The value.
    """
    last = way[-1]
    is_off = value in (None, False) or (len(way) == 1 and value in ("false", "False"))
    if last in SWITCHES:
        return None if is_off else (last, f"is not allowed in a recipe: it would {SWITCHES[last]}")
    if isinstance(value, str):
        implementation = next((name for name in way if name.endswith("_implementation")), None)
        if implementation is not None and "/" in value:
            return implementation, "is not allowed in a recipe: it would download a kernel and run it"
        if last == "backend" and "." in value:  # DeepSpeed's compile.backend
            return last, "is not allowed in a recipe: it would import a module"
    is_rate = isinstance(value, int | float) and RATES.search(last)
    if way[:-1] == ("model_init_kwargs",) and last not in INIT and not is_rate:
        known = ", ".join(sorted(INIT))
        return last, f"is not allowed in a recipe. Allowed are {known}, and dropout rates"
    return None


def _parse_mapping(file: Path, key: str, text: str) -> dict[str, Any]:
    """Return the mapping in a key's text, which is JSON or the path of a JSON file."""
    is_path = not text.lstrip().startswith("{")
    try:
        mapping = parse_json(read_text(text) if is_path else text)
    except ValueError:
        mapping = None
    if isinstance(mapping, dict):
        return mapping
    other = ", or the path of a JSON file" if key in FILES else ""
    raise InputError(f"{file}: {key}={short(text)} is not a JSON object. Write a mapping{other}.")
