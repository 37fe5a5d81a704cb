"""
The command line of a recipe script: help and complaints at once, the training after them. Nothing that takes seconds
to import is imported before the keys of the command line and of the recipe are known to exist.
"""

import itertools
import os
import sys
import textwrap
from pathlib import Path
from typing import NoReturn

from .. import tasks
from ..shown import visible
from .interrupt import NOTHING_BEGUN, end_at_once
from .launcher import launcher_keys
from .plugin import without_plugins
from .recipe_check import check_options, check_recipe, nearest, read_recipe
from .recipe_keys import AnyObject, Key, recipe_keys
from .shipped_recipes import SUFFIXES, recipe_file


WIDTH = 80
HELP = ("-h", "--help", "--help-all")


def main(default_recipe: str | Path | None = None, argv: list[str] | None = None) -> None:
    """As [`~trl_prorl.train.main`], for a recipe script: the modules that train are imported only when needed."""
    end_at_once(NOTHING_BEGUN)
    argv = first_look(default_recipe, argv)
    from ..train import main as train

    train(default_recipe, argv)


def first_look(default_recipe: str | Path | None, argv: list[str] | None = None) -> list[str]:
    """
    The command line with its recipe. `--help` prints and ends the process; an unknown key, on the command line or in
    the recipe, is one line on stderr and exit code 2.

    Args:
        default_recipe (`str` or `Path`, *optional*):
            The recipe if no `--config` is given; without either, the command line gives all keys.
        argv (`list[str]`, *optional*):
            Defaults to the process's own.

    Returns:
        `list[str]`: the command line, with `--config PATH` and the launcher's precision in front where the default
        recipe is run.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if any(argument in HELP for argument in argv):
        try:
            show(help_text(argv, default_recipe))
        except ValueError as error:
            refuse(error)
        raise SystemExit(0)
    argv = [part for arg in argv for part in (arg.split("=", 1) if arg.startswith("--config=") else [arg])]
    try:
        argv = without_plugins(argv)
        if not argv and default_recipe is None:
            raise ValueError(f"nothing says what to train: give --config RECIPE.yaml ({program()} --help says more).")
        keys = recipe_keys()
        check_options(argv, {"--config", *(option for key in keys.values() for option in key.options)})
        if bare := "--config" not in argv and default_recipe is not None:
            argv = ["--config", str(default_recipe), *argv]
        recipe = None
        if "--config" in argv:
            place = argv.index("--config") + 1
            if not argv[place].endswith(SUFFIXES):
                argv[place] = str(recipe_file(argv[place]))
            recipe = argv[place]
            check_recipe(recipe, {name: _hint(key) for name, key in keys.items()})
        if task := _given(argv, "task") or (recipe and read_recipe(recipe).get("task")):
            tasks.registry.check_name(task)
        if bare:  # the launcher's precision and device, unless the command line gives others
            argv[2:2] = launcher_keys()
    except ValueError as error:
        refuse(error)
    return argv


def _given(argv: list[str], key: str) -> str | None:
    """The value of a key on the command line."""
    parts = [part for argument in argv for part in argument.split("=", 1)]
    return parts[parts.index(f"--{key}") + 1] if f"--{key}" in parts[:-1] else None


def refuse(error: Exception) -> NoReturn:
    """One line on stderr, and exit code 2."""
    print(f"error: {visible(' '.join(str(error).split()))}", file=sys.stderr)
    raise SystemExit(2) from None


def show(text: str) -> None:
    """Print, to a reader that may close the pipe early, as `head` does."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains as it exits


def _hint(key: Key):
    # YAML reads a bare on as true; the check after the imports knows which keys take it.
    return key.hint | bool if key.hint is str else key.hint


def program() -> str:
    """The name that the process was started by."""
    path = Path(sys.argv[0])
    return "python -m trl_prorl.train" if path.parts[-2:] == ("trl_prorl", "train.py") else path.name


def help_text(argv: list[str], default_recipe: str | Path | None) -> str:
    """
    What `--help`, `--help KEY ...` and `--help-all` print.

    Raises:
        `ValueError`: there is no such key.
    """
    if "--help-all" in argv:
        return all_keys(default_recipe)
    place = next(place for place, argument in enumerate(argv) if argument in HELP)
    asked = list(itertools.takewhile(lambda argument: not argument.startswith("-"), argv[place + 1 :]))
    keys = recipe_keys()
    for name in asked:
        if name not in keys:
            raise ValueError(f"--help {name}: there is no such key{nearest(name, keys)}.")
    return "\n".join(describe(keys[name]) for name in asked) or one_screen(default_recipe)


def one_screen(default_recipe: str | Path | None) -> str:
    """`--config`, our own keys by name, and how to learn more."""
    lines = [*_head(default_recipe), ""]
    ours = [key for key in recipe_keys().values() if key.ours]
    groups: dict[str, list[str]] = {}
    for key in ours:
        groups.setdefault(f"that {key.group}" if key.group else "of the task", []).append(key.name)
    for group, names in groups.items():
        lines += [f"Keys {group}:", *_wrapped(" ".join(names), "  ")]
    lines.append("And all of TRL's GRPOConfig and ModelConfig." + _theirs(default_recipe))
    return "\n".join([*lines[:-1], *_wrapped(lines[-1])])


def all_keys(default_recipe: str | Path | None) -> str:
    """`--config` and every key with its meaning, our own first."""
    lines, keys = _head(default_recipe), recipe_keys().values()
    for ours, title in ((True, "Keys of trl-prorl"), (False, "Keys of TRL and transformers")):
        lines += ["", f"{title}:", "", *(describe(key) for key in keys if key.ours == ours)]
    return "\n".join(lines)


def describe(key: Key) -> str:
    """A key with its type, its default and its meaning."""
    default = "" if key.default is None else f" (default: {key.default.replace(chr(39), chr(34))})"
    text = key.text.replace("[`~", "`").replace("[`", "`").replace("`]", "`")
    return "\n".join([f"  --{key.name} {_type(key)}{default}", *_wrapped(text, " " * 6)])


def _type(key: Key) -> str:
    names = getattr(key.hint, "__args__", None) or [key.hint]
    words = [getattr(name, "__name__", str(name)) for name in names if name not in (type(None), AnyObject)]
    return " or ".join(dict.fromkeys(words)).upper()


def _head(default_recipe: str | Path | None) -> list[str]:
    config = "what to train" + (f" (default: {_short(default_recipe)})" if default_recipe else "")
    of_commands = program().startswith("trl-prorl ")
    return [
        f"usage: {program()} {'RECIPE' if of_commands else '[--config RECIPE.yaml]'} [--KEY VALUE ...]",
        "",
        f"  --config RECIPE.yaml  {config}"
        if not of_commands
        else "  RECIPE                what to train: a file, or a name that this command lists\n"
        "                        when it is given nothing; --config RECIPE is the same",
        "  --KEY VALUE           a key of the recipe; the command line wins",
        "  --plugin FILE.py      a file of yours that registers a task",
        "  --help KEY ...        what these keys mean",
        "  --help-all            what every key means, TRL's and transformers' too",
    ]


def _theirs(default_recipe: str | Path | None) -> str:
    """The keys of others that a recipe sets."""
    if default_recipe is None or not Path(default_recipe).is_file():
        return ""
    keys = recipe_keys()
    names = [name for name in read_recipe(default_recipe) if name in keys and not keys[name].ours]
    return f" {Path(default_recipe).name} sets {', '.join(names)}."


def _short(path: str | Path) -> str:
    parts = Path(path).parts
    return "/".join(parts[parts.index("recipes") :]) if "recipes" in parts else str(path)


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False)
