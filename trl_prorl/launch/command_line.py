"""
The command line of a recipe script. Help on our own keys is printed at once, and a misspelt key is refused at once;
what trains is imported afterwards, which takes seconds.

A recipe is read once, by [`check_arguments`], which checks what can be known without those imports (draft.py). The
parser (recipe.py) checks the rest, and makes the configurations.
"""

import itertools
import os
import sys
import textwrap
import typing
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import NoReturn

from ..announce import announce
from ..environment import torch_finds_no_gpu
from ..interrupt import NOTHING_BEGUN, end_at_once
from ..pipes import reader_may_leave
from ..tasks.plugin import without_plugins
from ..text import nearest, visible
from .options import check_config_option, check_options, read_options
from .recipe_check import check_keys, check_types
from .recipe_keys import KeyHelp, declared_keys, own_keys, recipe_keys
from .recipe_yaml import Recipe, load_recipe, read_recipe
from .shipped_recipes import SUFFIXES, recipe_file
from .value_types import options_of


WIDTH = 80
HELP = ("-h", "--help", "--help-all")


@dataclass(frozen=True)
class Arguments:
    """
    A command line that [`check_arguments`] has checked.

    Attributes:
        argv (`list[str]`): With `--config PATH`, and without plugins, which are loaded.
        recipe (`Recipe`, *optional*): The recipe at that path, if it was read and checked.
    """

    argv: list[str]
    recipe: Recipe | None = None

    @property
    def recipe_name(self) -> str:
        """What the command line calls the recipe."""
        if "--config" not in self.argv:
            return "the keys of the command line"
        return self.argv[self.argv.index("--config") + 1]


@reader_may_leave()
def main(default_recipe: str | Path | None = None, argv: list[str] | None = None) -> None:
    """Run [`~trl_prorl.train.main`] for a recipe script; what trains is imported once the recipe is in order."""
    end_at_once(NOTHING_BEGUN)
    arguments = check_arguments(default_recipe, argv)
    announce(f"train: {arguments.recipe_name}. Importing torch, transformers and TRL ...")
    configurations = parse(arguments)
    from ..train import run

    run(*configurations)


def check_arguments(default_recipe: str | Path | None, argv: list[str] | None = None) -> Arguments:
    """
    Check a command line and its recipe, as far as that takes no long import. `--help` prints and ends the process;
    what is wrong is one line on stderr and exit code 2.

    Args:
        default_recipe (`str` or `Path`, *optional*): The recipe if no `--config` is given. It is trained with the
            launcher's precision and device, unless the command line gives others. Without either recipe, the command
            line gives all keys.
        argv (`list[str]`, *optional*): The command line, by default the process's own.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if any(argument in HELP for argument in argv):
        try:
            print(help_text(argv, default_recipe))
        except ValueError as error:
            refuse(error)
        raise SystemExit(0)
    try:
        argv = check_config_option(without_plugins(argv))
        if not argv and default_recipe is None:
            raise ValueError(f"nothing says what to train: give --config RECIPE.yaml ({program()} --help says more).")
        if "--config" in argv:
            place = argv.index("--config") + 1
            if not argv[place].endswith(SUFFIXES):
                argv[place] = str(recipe_file(argv[place]))
        elif default_recipe is not None:
            argv = ["--config", str(default_recipe), *launcher_keys(), *argv]
        return Arguments(argv, check_before_imports(argv))
    except (ValueError, OSError) as error:
        refuse(error)


def check_before_imports(argv: list[str]) -> Recipe | None:
    """
    Check the keys of a command line and of the recipe that it names, as far as that takes no long import: their names,
    their types, and what their values alone make wrong.

    Returns:
        `Recipe` or `None`: The recipe. `None`: there is none, or the names of other libraries' keys are not known, so
            that the parser checks all of it.

    Raises:
        `ValueError`: A key that nobody has, a value of the wrong kind, or a run that the configurations would refuse.
    """
    keys = declared_keys()
    if not keys:
        return None
    flags = {"--config"}
    for name, key in keys.items():
        flags.update([f"--{name}", f"--{name}".replace("_", "-")])
        if bool in options_of(key.hint):
            flags.update([f"--no_{name}", f"--no_{name}".replace("_", "-")])
    check_options(argv, flags)
    hints = {name: key.hint for name, key in keys.items()}
    recipe = None
    if "--config" in argv:
        recipe = load_recipe(argv[argv.index("--config") + 1])
        check_keys(recipe, keys)
        check_types(recipe, hints)
    read_options(argv, hints)
    return recipe


def parse(arguments: Arguments) -> tuple:
    """Call [`~trl_prorl.launch.recipe.parse_recipe`]; what is wrong is one line on stderr and exit code 2."""
    from .recipe import parse_recipe  # torch and the configurations of transformers and TRL, which know all keys

    try:
        return parse_recipe(arguments.argv, arguments.recipe)
    except (ValueError, OSError) as error:
        refuse(error)


def refuse(error: Exception, code: int = 2) -> NoReturn:
    """End the process with one line on stderr, and an exit code."""
    print(f"error: {visible(' '.join(str(error).split()))}", file=sys.stderr)
    raise SystemExit(code) from None


def program() -> str:
    """Return the name that the process was started by."""
    path = Path(sys.argv[0])
    return "python -m trl_prorl.train" if path.parts[-2:] == ("trl_prorl", "train.py") else path.name


def help_text(argv: list[str], default_recipe: str | Path | None) -> str:
    """
    Return what `--help`, `--help KEY ...` and `--help-all` print.

    Raises:
        `ValueError`: There is no such key.
    """
    if "--help-all" in argv:
        return all_keys(default_recipe)
    place = next(place for place, argument in enumerate(argv) if argument in HELP)
    names = list(itertools.takewhile(lambda argument: not argument.startswith("-"), argv[place + 1 :]))
    if not names:
        return one_screen(default_recipe)
    keys = own_keys()
    if not keys.keys() >= set(names):
        keys = recipe_keys()
    for name in names:
        if name not in keys:
            raise ValueError(f"--help {name}: there is no such key{nearest(name, keys)}.")
    return "\n".join(describe(keys[name]) for name in names)


def one_screen(default_recipe: str | Path | None) -> str:
    """Write about `--config`, our own keys by name, and how to learn more."""
    names_by_group: dict[str, list[str]] = {}
    for key in own_keys().values():
        group = f"that {key.group}" if key.group else "of the task"
        names_by_group.setdefault(group, []).append(key.name)
    lines = [*_head(default_recipe), ""]
    for group, names in names_by_group.items():
        lines += [f"Keys {group}:", *_wrapped(" ".join(names), "  ")]
    lines += _wrapped("And all of TRL's GRPOConfig and ModelConfig." + _keys_of_others(default_recipe))
    return "\n".join(lines)


def all_keys(default_recipe: str | Path | None) -> str:
    """Write about `--config` and every key with its meaning, our own first."""
    keys = recipe_keys()
    own_names = [name for name in keys if name in own_keys()]
    other_names = [name for name in keys if name not in own_keys()]
    lines = _head(default_recipe)
    for title, names in (("Keys of trl-prorl", own_names), ("Keys of TRL and transformers", other_names)):
        lines += ["", f"{title}:", ""]
        lines += [describe(keys[name]) for name in names]
    return "\n".join(lines)


def describe(key: KeyHelp) -> str:
    """Return a key with its type, its default and its meaning."""
    default = ""
    if key.default is not None:
        default = f" (default: {key.default.replace(chr(39), chr(34))})"
    text = key.text.replace("[`~", "`").replace("[`", "`").replace("`]", "`")
    return "\n".join([f"  --{key.name} {_type(key)}{default}", *_wrapped(text, " " * 6)])


def _type(key: KeyHelp) -> str:
    hints = [hint for hint in typing.get_args(key.hint) or [key.hint] if hint is not NoneType]
    names = [getattr(hint, "__name__", str(hint)).upper() for hint in hints]
    return " or ".join(dict.fromkeys(names))


def _head(default_recipe: str | Path | None) -> list[str]:
    if program().startswith("trl-prorl "):
        recipe = "RECIPE"
        what = (
            "  RECIPE                what to train: a file, or a name that this command lists\n"
            "                        when it is given nothing; --config RECIPE is the same"
        )
    else:
        recipe = "[--config RECIPE.yaml]"
        what = "  --config RECIPE.yaml  what to train"
        if default_recipe:
            what += f" (default: {_short(default_recipe)})"
    return [
        f"usage: {program()} {recipe} [--KEY VALUE ...]",
        "",
        what,
        "  --KEY VALUE           a key of the recipe; the command line wins",
        "  --plugin FILE.py      a file of yours that registers a task",
        "  --help KEY ...        what these keys mean",
        "  --help-all            what every key means, TRL's and transformers' too",
    ]


def _keys_of_others(default_recipe: str | Path | None) -> str:
    """Return the keys of others that a recipe sets."""
    if default_recipe is None or not Path(default_recipe).is_file():
        return ""
    names = [name for name in read_recipe(default_recipe) if name not in own_keys() and name != "env"]
    return f" {Path(default_recipe).name} sets {', '.join(names)}."


def _short(path: str | Path) -> str:
    parts = Path(path).parts
    if "recipes" not in parts:
        return str(path)
    return "/".join(parts[parts.index("recipes") :])


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False)


def launcher_keys() -> list[str]:
    """
    Write the precision and the device of the launcher as a command line; it is empty without a launcher.

    Raises:
        `ValueError`: This machine has no GPU, and the launcher is set to several, or to fp16.
    """
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION")
    if precision is None:
        return []
    on_cpu = os.environ.get("ACCELERATE_USE_CPU")  # not set where the launcher starts one process a GPU
    use_cpu = True
    if on_cpu != "True" and not torch_finds_no_gpu():
        import torch

        use_cpu = not torch.cuda.is_available()
    if on_cpu is None and use_cpu:
        raise ValueError(
            "accelerate launch was told of several GPUs, and torch finds none here. Launch with "
            "--config_file accelerate_configs/cpu.yaml, or run this script with python."
        )
    if use_cpu and precision == "fp16":
        raise ValueError("accelerate launch says mixed_precision=fp16, which needs a GPU. Launch with no, or bf16.")
    if use_cpu and precision == "bf16":
        print("The launcher says bf16, and this run is on a CPU: it computes in bf16 there.", file=sys.stderr)
    return [
        *("--bf16", "true" if precision == "bf16" else "false"),
        *("--fp16", "true" if precision == "fp16" else "false"),
        *("--use_cpu", "true" if use_cpu else "false"),
    ]
