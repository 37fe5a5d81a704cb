"""Values of JSON, compared with the type that an annotation says."""

import math
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict


class TypeMismatchError(ValueError):
    """A value is not of its type; the message says where, what it is, and what is needed."""


def check_type(value: Any, kind: Any, at: str = "") -> None:
    """
    Require that a value of JSON is of a type.

    Args:
        value: The value.
        kind: `str`, `bool`, `int`, `float` (finite; an integer, too), `dict`, `list`, `list[kind]`, `dict[str, kind]`,
            `kind | None`, or a `TypedDict`, which has no other keys.
        at (`str`): Its place, for the message; empty for a whole document.

    Raises:
        [`TypeMismatchError`]: It is not.
    """
    options = get_args(kind)
    if NoneType in options:
        if value is not None:
            check_type(value, options[0], at)
        return
    if is_typeddict(kind):
        check_type(value, dict, at)
        hints = get_type_hints(kind)
        for key in hints:
            if key in kind.__required_keys__ and key not in value:
                raise TypeMismatchError(f"{at or 'it'} has no {key!r}")
        for key, one in value.items():
            if key not in hints:
                raise TypeMismatchError(f"{f'{at}.{key}' if at else key} is not a key of the schema")
            check_type(one, hints[key], f"{at}.{key}" if at else key)
        return
    plain = get_origin(kind) or kind
    accepted = (int, float) if plain is float else plain
    is_right = isinstance(value, accepted) and (plain is bool or not isinstance(value, bool))
    if not is_right or (plain is float and not math.isfinite(value)):
        spelt = repr(value)[:40] if isinstance(value, (str, int, float, NoneType)) else f"a {type(value).__name__}"
        raise TypeMismatchError(f"{at or 'it'} is {spelt}; {plain.__name__} is needed")
    if plain is list and options:
        for place, one in enumerate(value):
            check_type(one, options[0], f"{at}[{place}]")
    if plain is dict and options:
        for key, one in value.items():
            check_type(one, options[1], f"{at}.{key}")
