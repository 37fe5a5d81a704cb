"""Values of JSON, compared with the type that an annotation says."""

import math
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

from ..text import short


class TypeMismatchError(ValueError):
    """A value is not of its type; the message says where, what it is, and what is needed."""


def check_type(value: Any, kind: Any, at: str) -> None:
    """
    Require that a value of JSON is of a type.

    Args:
        value: The value.
        kind: `str`, `bool`, `int`, `float` (finite; an integer, too), `dict`, `list`, `list[kind]`, `dict[str, kind]`,
            `kind | None`, or a `TypedDict`, which has no other keys.
        at (`str`): Its place, for the message.

    Raises:
        [`TypeMismatchError`]: It is not.
    """
    options = get_args(kind)
    if NoneType in options:
        if value is None:
            return
        kind = options[0]
        options = get_args(kind)
    plain = dict if is_typeddict(kind) else get_origin(kind) or kind
    is_right = isinstance(value, (int, float) if plain is float else plain)
    if isinstance(value, bool):
        is_right = plain is bool
    if not is_right or (plain is float and not math.isfinite(value)):
        needed = "a finite number" if plain is float else plain.__name__
        raise TypeMismatchError(f"{at} is {short(value)}; {needed} is needed")
    if is_typeddict(kind):
        hints = get_type_hints(kind)
        for key in hints:
            if key in kind.__required_keys__ and key not in value:
                raise TypeMismatchError(f"{at} has no {key!r}")
        for key in value:
            if key not in hints:
                raise TypeMismatchError(f"{at}.{short(key)} is not a key of the schema")
            check_type(value[key], hints[key], f"{at}.{key}")
    elif plain is list and options:
        for place, one in enumerate(value):
            check_type(one, options[0], f"{at}[{place}]")
    elif plain is dict and options:
        for key, one in value.items():
            check_type(one, options[1], f"{at}.{short(key)}")
