"""Does a value of a recipe or a command line fit the type of its key, and what does the parser make of it?"""

import types
import typing
from typing import Any


# What the parser takes for true and false, in any case.
TRUE_OR_FALSE = {"yes": True, "true": True, "t": True, "y": True, "1": True}
TRUE_OR_FALSE |= {"no": False, "false": False, "f": False, "n": False, "0": False}

TYPES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a mapping",
}


def options_of(hint: Any) -> tuple[Any, ...]:
    """Return the types that a type allows."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def takes_mapping(hint: Any) -> bool:
    """Return whether a type is that of a mapping, or allows one."""
    return dict in (hint, typing.get_origin(hint)) or any(map(takes_mapping, typing.get_args(hint)))


def fits(value: Any, hint: Any) -> bool:
    """
    Return whether a YAML value fits a field's type. Text fits where the parser can convert it, and one word may stand
    for a list (`lora_target_modules: all-linear`).
    """
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, option) for option in typing.get_args(hint))
    if hint is type(None):
        return value is None
    if isinstance(value, str):
        return _can_be_read(value, hint)
    if hint is float:
        return isinstance(value, float) or fits(value, int)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    if hint in (bool, str, list, dict) or origin in (list, dict):
        return isinstance(value, origin or hint)
    return True  # enumerations and the like: checked where they are used


def _can_be_read(text: str, hint: Any) -> bool:
    if list in (hint, typing.get_origin(hint)):
        return all(_can_be_read(text, option) for option in typing.get_args(hint))
    try:
        read_text_as(text, hint)
    except (ValueError, OverflowError):
        return False
    return True


def read_text_as(text: str, hint: Any) -> Any:
    """
    Return what the parser makes of text for a type. Of types that are no number and no truth value the text stays.

    Raises:
        `ValueError`: It complains of it.
    """
    options = options_of(hint)
    if str in options:
        return text
    for option in options:
        if option in (int, float):
            return option(text)
        if option is bool:
            if text.lower() not in TRUE_OR_FALSE:
                raise ValueError(f"{text} is neither true nor false")
            return TRUE_OR_FALSE[text.lower()]
    return text


def read_as(value: Any, hint: Any) -> Any:
    """Return a value that [`fits`] as the parser reads it: text as a number or a truth value, in a list, too."""
    if isinstance(value, str):
        return read_text_as(value, hint)
    for option in options_of(hint):
        if isinstance(value, list) and typing.get_origin(option) is list:
            return [read_as(one, typing.get_args(option)[0]) for one in value]
    return value


def kind(value: Any) -> str:
    """Return the type of a value in the words of a recipe's author."""
    if value is None:
        return "empty"
    if isinstance(value, int) and abs(value) >= 2**63:
        return "a number that is too large"
    return TYPES.get(type(value), type(value).__name__)


def spell_type(hint: Any) -> str:
    """Return the values that a type takes, in these words."""
    words = []
    for option in options_of(hint):
        if option is types.NoneType:
            words.append("null")
        else:
            words.append(TYPES.get(typing.get_origin(option) or option, "text"))
    return " or ".join(dict.fromkeys(words))
