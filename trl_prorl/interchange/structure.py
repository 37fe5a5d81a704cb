"""Whether JSON that another program wrote has the structure that a type hint tells."""

import types
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict


def fits(held: Any, hint: Any) -> bool:
    """
    Whether a value read from JSON is of a type, down to the entries of lists and dicts.

    Args:
        held (`Any`): From `json.loads`.
        hint (`Any`): `Any`, a plain type, a union, `list[...]`, `dict[str, ...]`, or a `TypedDict`, whose keys are
            those of the value and no other. A whole number fits `float`; a bool fits no number.
    """
    if hint is Any:
        return True
    if is_typeddict(hint):
        hints = get_type_hints(hint)
        return (
            isinstance(held, dict)
            and held.keys() == hints.keys()
            and all(fits(held[key], hints[key]) for key in hints)
        )
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(fits(held, one) for one in inner)
    if origin is list:
        return isinstance(held, list) and all(fits(one, inner[0]) for one in held)
    if origin is dict:
        return isinstance(held, dict) and all(fits(one, inner[1]) for one in held.values())
    if hint in (int, float):
        return isinstance(held, (int, hint)) and not isinstance(held, bool)
    return isinstance(held, hint)
