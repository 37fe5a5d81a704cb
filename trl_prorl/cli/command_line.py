"""The command line of `trl-prorl train`."""

import sys
from pathlib import Path

from ..errors import InputError
from ..tasks.plugin import without_plugins
from .ending import DEBUG, NOTHING_BEGUN, announce, as_bad_input, in_one_line
from .shipped_recipes import with_recipe


def main(default_recipe: str | Path | None = None, argv: list[str] | None = None) -> None:
    """Train a recipe, by default the script's; further arguments override it."""
    argv = list(sys.argv[1:] if argv is None else argv)
    with in_one_line(NOTHING_BEGUN, debug=DEBUG in argv):
        with as_bad_input():
            argv = check_arguments(default_recipe, argv)
            announce(f"train: {recipe_name(argv)}. Importing torch, transformers and TRL ...")
            from ..train import parse_recipe, run

            configurations = parse_recipe(argv)
        run(*configurations)


def check_arguments(default_recipe: str | Path | None, argv: list[str]) -> list[str]:
    """Return the command line with `--config PATH` and without `--plugin`; plugins are loaded."""
    argv = with_recipe(without_plugins([argument for argument in argv if argument != DEBUG]))
    if default_recipe is not None and "--config" not in argv:
        argv = ["--config", str(default_recipe), *argv]
    if not argv:
        raise InputError("the recipe is missing. `trl-prorl train` lists the shipped recipes.")
    return argv


def recipe_name(argv: list[str]) -> str:
    return argv[argv.index("--config") + 1] if "--config" in argv else "the keys of the command line"
