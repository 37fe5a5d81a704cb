"""`--help`, `--help KEY ...` and `--help-all`. Help on our own keys needs no slow import."""

import dataclasses
import itertools
import re
import textwrap
import typing
from dataclasses import dataclass
from pathlib import Path
from types import NoneType

from ..keys import ProlongedKeys, TaskKeys
from ..text import nearest


WIDTH = 80
HELP = ("-h", "--help", "--help-all")
# In a docstring: the title of a group of keys, or a key with its more deeply indented description.
ENTRY = re.compile(
    r"^ *> (?P<group>.+)$|^(?P<indent> +)(?P<name>\w+) \(.+\):\n(?P<text>(?:(?P=indent) +\S.*\n|\n)+)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class KeyHelp:
    """
    Help on one key.

    Attributes:
        hint (`Any`): Its type.
        default (`str`): Its default, as Python source; empty if a factory makes it.
        text (`str`): Its description, from the docstring, else from its field.
        group (`str`): Title of its group in the docstring, or empty.
    """

    hint: typing.Any
    default: str
    text: str
    group: str


def own_keys() -> dict[str, KeyHelp]:
    return _described(TaskKeys, ProlongedKeys)


def all_keys() -> dict[str, KeyHelp]:
    """Return our keys and those of TRL and transformers, by name."""
    from trl import GRPOConfig, ModelConfig, ScriptArguments

    return own_keys() | _described(ScriptArguments, GRPOConfig, ModelConfig)


def _described(*classes: type) -> dict[str, KeyHelp]:
    keys = {}
    for cls in classes:
        entries = _entries(cls.__doc__ or "")
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            of_field = str(field.metadata.get("help") or "").replace("%%", "%")
            text, group = entries.get(field.name, (of_field, ""))
            default = ""
            if field.default is not dataclasses.MISSING:
                default = repr(getattr(field.default, "value", field.default))  # of an enumeration
            keys[field.name] = KeyHelp(hints[field.name], default, text, group)
    return keys


def _entries(docstring: str) -> dict[str, tuple[str, str]]:
    """Return the description and the group of each key in a docstring."""
    found = {}
    group = ""
    for match in ENTRY.finditer(docstring):
        if match["group"]:
            group = match["group"]
        else:
            found[match["name"]] = (" ".join(match["text"].split()), group)
    return found


def help_text(argv: list[str], default_recipe: str | Path | None, program: str) -> str:
    """
    Return the help on all keys, on the keys that follow `--help`, or the usage with our own keys by name.

    Raises:
        `ValueError`: There is no such key.
    """
    if "--help-all" in argv:
        keys = all_keys()
        return "\n".join([_usage(default_recipe, program), "", *(describe(name, keys[name]) for name in keys)])
    place = next(place for place, argument in enumerate(argv) if argument in HELP)
    names = list(itertools.takewhile(lambda argument: not argument.startswith("-"), argv[place + 1 :]))
    keys = own_keys()
    if not names:
        lines = [_usage(default_recipe, program), ""]
        for group, of_group in itertools.groupby(keys, key=lambda name: keys[name].group):
            lines += [f"{group}:", _wrapped(" ".join(of_group), "  ")]
        return "\n".join([*lines, "Plus all keys of TRL's GRPOConfig and ModelConfig."])
    if not keys.keys() >= set(names):
        keys = all_keys()
    for name in names:
        if name not in keys:
            raise ValueError(f"--help {name}: unknown key{nearest(name, keys)}.")
    return "\n".join(describe(name, keys[name]) for name in names)


def describe(name: str, key: KeyHelp) -> str:
    hints = [hint for hint in typing.get_args(key.hint) or [key.hint] if hint is not NoneType]
    types = " or ".join(dict.fromkeys(getattr(hint, "__name__", str(hint)).upper() for hint in hints))
    default = f" (default: {key.default.replace(chr(39), chr(34))})" if key.default else ""
    text = key.text.replace("[`~", "`").replace("[`", "`").replace("`]", "`")
    return f"  --{name} {types}{default}\n{_wrapped(text, ' ' * 6)}"


def _usage(default_recipe: str | Path | None, program: str) -> str:
    default = f" (default: {'/'.join(Path(default_recipe).parts[-2:])})" if default_recipe else ""
    return (
        f"usage: {program} {'[RECIPE]' if default_recipe else 'RECIPE'} [--KEY VALUE ...]\n\n"
        "  RECIPE                recipe to train: a YAML file, or a name from the list of\n"
        f"                        `trl-prorl train`; also as --config RECIPE{default}\n"
        "  --KEY VALUE           override a key of the recipe\n"
        "  --plugin FILE.py      load a Python file that registers your task\n"
        "  --help KEY ...        describe these keys\n"
        "  --help-all            describe all keys, including TRL's and transformers'\n"
        "  --debug               show the traceback of every error"
    )


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False)
