"""
The words of a command line: which are options, and what values they have. Nothing that takes long is imported, so that
a complaint comes before anything else happens.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ..errors import InputError
from ..keys import RENAMED
from ..text import cut, nearest, short
from .value_types import fits, spell_type


def read_options(arguments: list[str], hints: Mapping[str, Any]) -> dict[str, Any]:
    """
    Read the keys that a command line sets, as far as their types are known.

    Args:
        arguments (`list[str]`): The command line; [`check_options`] has found every option in it.
        hints (`Mapping[str, Any]`): The types by key.

    Returns:
        `dict[str, Any]`: A value for each key; a key that the parser will complain of is left out.

    Raises:
        `ValueError`: A value is of another type. The line names the option, the value and the type.
    """
    found = {}
    for key, words in words_of_options(arguments).items():
        positive = key.removeprefix("no_")
        if key not in hints and positive in hints:
            found[positive] = False
        elif key in hints and not words and fits(True, hints[key]):
            found[key] = True
        elif key in hints and words:
            value = words[0] if len(words) == 1 else words
            if not fits(value, hints[key]):
                taken = spell_type(hints[key]).removesuffix(" or null")
                raise InputError(f"--{key} {short(value)} cannot be read: {key} takes {taken}.")
            found[key] = value
    return found


def words_of_options(arguments: list[str]) -> dict[str, list[str]]:
    """Return the words that follow each option of a command line, by its key. The last of the same options counts."""
    words_of: dict[str, list[str]] = {}
    words: list[str] = []
    for argument in arguments:
        if is_option(argument):
            name, equals, value = argument.partition("=")
            words = [value] if equals else []
            words_of[name.lstrip("-").replace("-", "_")] = words
        else:
            words.append(argument)
    return words_of


def split_config_option(arguments: Iterable[str]) -> list[str]:
    """Split each `--config=PATH` of a command line into two words."""
    words: list[str] = []
    for argument in arguments:
        if argument.startswith("--config="):
            words += argument.split("=", 1)
        else:
            words.append(argument)
    return words


def check_config_option(arguments: list[str]) -> list[str]:
    """
    Split `--config=PATH` of a command line into two words.

    Raises:
        `ValueError`: The command line begins with no option, or does not name one recipe.
    """
    words = split_config_option(arguments)
    if words and not words[0].startswith("-"):
        cure = f": write --config {words[0]}" if words[0].endswith((".yaml", ".yml")) else ""
        raise InputError(f"{words[0]!r} follows no option{cure}.")
    if "--config" in words and words[-1] == "--config":
        raise InputError("--config needs the path of a recipe after it.")
    if words.count("--config") > 1:
        raise InputError("--config is given twice; a run has one recipe.")
    return words


def check_options(arguments: list[str], flags: Collection[str]) -> None:
    """Raise a `ValueError` that names the first option of a command line that is not one of the flags."""
    for argument in arguments:
        name = argument.split("=")[0]
        key = name.lstrip("-").replace("-", "_")
        if is_option(argument) and name not in flags:
            cure = f": {RENAMED[key]}" if key in RENAMED else nearest(cut(name), flags)
            raise InputError(f"unknown option {short(argument)}{cure}.")


def is_option(argument: str) -> bool:
    """Return whether a word of a command line is the name of an option; a negative number is a value."""
    return argument.startswith("--") or re.match(r"-[a-z]\w", argument) is not None
