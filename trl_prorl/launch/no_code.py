"""
A recipe cannot make the machine run code that is not installed on it, because recipes are passed around. On the
command line, where users type it themselves, it is allowed.
"""

import re
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..record.run_files import read_text
from ..text import cut, parse_json, short


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


def check_runs_no_code(file: Path, key: str, value: Any) -> None:
    """
    Check every value inside a key's value, at any depth. Aliases of YAML are bounded where it is parsed.

    Raises:
        `ValueError`: A value would run code. The line names the file, the key and the value.
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
                f"{file}: {place}={short(inner)} {why}. If you trust it, give --{key} on the command line."
            )
        if isinstance(inner, dict):
            left += [((*way, str(name)), one) for name, one in inner.items()]
        elif isinstance(inner, list):
            left += [((*way, str(place)), one) for place, one in enumerate(inner)]


def _find_problem(way: tuple[str, ...], value: Any) -> tuple[str, str] | None:
    """
    Return what a value makes the machine do, if it may not: the key that says so, usually the last one, and the words.

    Args:
        way (`tuple[str, ...]`): The keys that lead to the value.
        value (`Any`): The value.
    """
    last = way[-1]
    is_off = value in (None, False) or (len(way) == 1 and value in ("false", "False"))
    if last in SWITCHES:
        return None if is_off else (last, f"would {SWITCHES[last]}, which a recipe may not ask for")
    if isinstance(value, str):
        implementation = next((name for name in way if name.endswith("_implementation")), None)
        if implementation is not None and "/" in value:
            return implementation, "would download a kernel and run it, which a recipe may not ask for"
        if last == "backend" and "." in value:  # DeepSpeed's compile.backend
            return last, "would import a module, which a recipe may not ask for"
    is_rate = isinstance(value, int | float) and RATES.search(last)
    if way[:-1] == ("model_init_kwargs",) and last not in INIT and not is_rate:
        known = ", ".join(sorted(INIT))
        return last, f"is not one of a model's arguments that a recipe may give: {known}, and rates of dropout"
    return None


def _parse_mapping(file: Path, key: str, text: str) -> dict[str, Any]:
    """Return the mapping that the parser makes of a key's text, JSON or the path of a file of it."""
    is_path = not text.lstrip().startswith("{")
    try:
        mapping = parse_json(read_text(text) if is_path else text)
    except ValueError:
        mapping = None
    if isinstance(mapping, dict):
        return mapping
    other = ", or the path of a file of one" if key in FILES else ""
    raise InputError(f"{file}: {key}={short(text)} is not a JSON object. Write a mapping{other}.")
