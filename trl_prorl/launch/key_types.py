"""Check the type of a recipe's values. TRL's parser converts only text, and accepts every other value unchecked."""

import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import InputError
from ..keys import BARE_WORDS
from ..text import short
from .no_code import FILES
from .precision import AUTO
from .recipe_yaml import Layers, merge


# Text keys that a recipe may set to an unquoted on, off or true, which YAML reads as true or false.
BARE = (*BARE_WORDS, "resume_from_checkpoint")
WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "a mapping",
    types.NoneType: "null",
}
TRUTH_WORDS = ("yes", "true", "t", "y", "1", "no", "false", "f", "n", "0")  # accepted by the parser, in any case


def check_types(layers: Layers, hints: Mapping[str, Any]) -> None:
    """
    Check the values of a recipe against the annotations of its keys.

    Raises:
        `ValueError`: A value has the wrong type.
    """
    file_of = {key: file for file, keys in layers for key in keys}
    for key, value in merge(layers).items():
        is_auto = key == "bf16" and value == AUTO
        is_bare = key in BARE and isinstance(value, bool)
        is_file = key in FILES and isinstance(value, str)  # the mapping in it was read by check_runs_no_code
        if key in hints and not (is_auto or is_bare or is_file or fits(value, hints[key])):
            expected = " or ".join(dict.fromkeys(WORDS.get(kind, "text") for kind in _kinds(hints[key])))
            raise InputError(f"{file_of[key]}: {key}={short(value)} must be {expected}.")


def fits(value: Any, hint: Any) -> bool:
    """Return whether a YAML value fits an annotation."""
    kinds = _kinds(hint)
    if isinstance(value, str) and dict in kinds:
        return value.lstrip().startswith("{")
    return any(_fits_kind(value, kind) for kind in kinds)


def _fits_kind(value: Any, kind: Any) -> bool:
    is_text = isinstance(value, str)
    if is_text and kind is bool:
        return value.lower() in TRUTH_WORDS
    if is_text and kind in (int, float):
        return _can_be_read(value, kind)
    if kind in (int, float):
        is_number = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
        return is_number or (kind is float and isinstance(value, float))
    if kind is list:
        return is_text or isinstance(value, list)  # one word may replace a list, for example all-linear
    if kind in (bool, str, dict, types.NoneType):
        return isinstance(value, kind)
    return True  # for example an enumeration, which the parser checks


def _can_be_read(text: str, read: Callable[[str], Any]) -> bool:
    try:
        read(text)
    except ValueError:
        return False
    return True


def _kinds(hint: Any) -> tuple[Any, ...]:
    """Return the types that an annotation allows, without the types of elements."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    options = typing.get_args(hint) if is_union else (hint,)
    return tuple(typing.get_origin(option) or option for option in options)
