"""The command line of `trl-prorl train`."""

import os
import sys
from pathlib import Path

from ..errors import InputError
from ..tasks.plugin import without_plugins
from .ending import DEBUG, NOTHING_BEGUN, announce, as_bad_input, in_one_line
from .shipped_recipes import recipe_list, with_recipe


def main(default_recipe: str | Path | None = None, argv: list[str] | None = None) -> None:
    """
    Train a recipe, by default the script's; further arguments override it. Errors are one line on stderr. Exit codes:
    2 for bad input, 1 for a run that had to stop, 130 for Ctrl-C. An unexpected error keeps its traceback; with
    `--debug`, every error does.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"}.intersection(argv):
        print(recipe_list())
        return
    with in_one_line(NOTHING_BEGUN, debug=DEBUG in argv):
        with as_bad_input():
            argv = check_arguments(default_recipe, argv)
            announce(f"train: {recipe_name(argv)}. Importing torch, transformers and TRL ...")
            from ..train import parse_recipe, run

            configurations = parse_recipe(argv)
        run(*configurations)


def check_arguments(default_recipe: str | Path | None, argv: list[str]) -> list[str]:
    """
    Return the command line with `--config PATH` and without `--plugin`; plugins are loaded. The default recipe takes
    the launcher's precision and device.
    """
    argv = with_recipe(without_plugins([argument for argument in argv if argument != DEBUG]))
    if default_recipe is not None and "--config" not in argv:
        argv = ["--config", str(default_recipe), *launcher_keys(), *argv]
    if not argv:
        raise InputError("the recipe is missing. `trl-prorl train` lists the shipped recipes.")
    return argv


def recipe_name(argv: list[str]) -> str:
    """Return the recipe's path in a command line of [`check_arguments`], for a message."""
    return argv[argv.index("--config") + 1] if "--config" in argv else "the keys of the command line"


def launcher_keys() -> list[str]:
    """Return precision and device of `accelerate launch` as arguments; none without it."""
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION")
    if precision is None:
        return []
    use_cpu = os.environ.get("ACCELERATE_USE_CPU") == "True"
    if not use_cpu:
        import torch  # which takes seconds

        use_cpu = not torch.cuda.is_available()
    return [f"--bf16={precision == 'bf16'}", f"--fp16={precision == 'fp16'}", f"--use_cpu={use_cpu}"]
