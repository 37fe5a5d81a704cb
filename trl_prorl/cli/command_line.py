"""The command line of `trl-prorl train`. Help and errors about misspelt keys come before the slow imports."""

import dataclasses
import importlib.util
import os
import re
import sys
from collections.abc import Collection
from pathlib import Path

from ..errors import InputError
from ..keys import RENAMED, ProlongedKeys, TaskKeys
from ..tasks.plugin import without_plugins
from ..tasks.registry import check_name
from ..text import cut, nearest, short
from .ending import DEBUG, NOTHING_BEGUN, announce, as_bad_input, end_at_once, in_one_line
from .help import HELP, help_text
from .recipe_yaml import check_recipe, load_recipe, merge, set_variables
from .shipped_recipes import with_recipe


# The files in which TRL and transformers declare keys.
DECLARE = {
    "transformers": ("training_args.py",),
    "trl": ("scripts/utils.py", "trainer/base_config.py", "trainer/grpo_config.py", "trainer/model_config.py"),
}

ANNOTATED = re.compile(r"^    (\w+): ", re.MULTILINE)  # a field of a class


def main(default_recipe: str | Path | None = None, argv: list[str] | None = None) -> None:
    """
    Train a recipe, by default the script's; further arguments override it. Errors are one line on stderr. Exit codes:
    2 for bad input, 1 for a run that had to stop, 130 for Ctrl-C. An unexpected error keeps its traceback; with
    `--debug`, every error does.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    with in_one_line(NOTHING_BEGUN, debug=DEBUG in argv):
        end_at_once(NOTHING_BEGUN)
        with as_bad_input():
            argv = check_arguments(default_recipe, argv)
            announce(f"train: {recipe_name(argv)}. Importing torch, transformers and TRL ...")
            from ..train import parse_recipe, run

            configurations = parse_recipe(argv)
        run(*configurations)


def check_arguments(default_recipe: str | Path | None, argv: list[str]) -> list[str]:
    """
    Check what needs no slow import, and set the recipe's environment variables. `--help` prints and exits.

    Args:
        default_recipe (`str` or `Path`, *optional*): The recipe if none is given, trained with the launcher's
            precision and device unless the command line overrides them. Without any recipe, the command line gives all
            keys.
        argv (`list[str]`): The command line.

    Returns:
        `list[str]`: The command line with `--config PATH` and without `--plugin`; plugins are loaded.

    Raises:
        `ValueError`: A key, the recipe or the task is wrong.
    """
    if any(argument in HELP for argument in argv):
        print(help_text(argv, default_recipe, program()))
        raise SystemExit(0)
    argv = with_recipe(without_plugins([argument for argument in argv if argument != DEBUG]))
    takes_default = default_recipe is not None and "--config" not in argv
    if takes_default:
        argv = ["--config", str(default_recipe), *argv]
    if not argv:
        raise InputError(f"the recipe is missing: {program()} RECIPE. `trl-prorl train` lists the shipped recipes.")
    names = key_names()
    check_options(argv, names)
    task = None
    if "--config" in argv:
        layers = load_recipe(argv[argv.index("--config") + 1])
        check_recipe(layers, names)
        keys = merge(layers)
        set_variables(keys)
        task = keys.get("task")
    if "--task" in argv[:-1]:
        task = argv[argv.index("--task") + 1]
    if isinstance(task, str):
        check_name(task)
    return [*argv[:2], *launcher_keys(), *argv[2:]] if takes_default else argv


def recipe_name(argv: list[str]) -> str:
    """Return the recipe's path in a command line of [`check_arguments`], for a message."""
    return argv[argv.index("--config") + 1] if "--config" in argv else "the keys of the command line"


def program() -> str:
    path = Path(sys.argv[0])
    return "python -m trl_prorl.train" if path.parts[-2:] == ("trl_prorl", "train.py") else path.name


def key_names() -> set[str]:
    """
    Return every annotated name in the files that declare keys, as text: importing them takes seconds. Empty if a file
    is not found.
    """
    names = {field.name for cls in (TaskKeys, ProlongedKeys) for field in dataclasses.fields(cls)}
    for package, files in DECLARE.items():
        spec = importlib.util.find_spec(package)
        for file in files:
            path = Path(spec.origin if spec else __file__).parent / file
            if not path.is_file():
                return set()
            names |= {*ANNOTATED.findall(path.read_text(encoding="utf-8"))}
    return names


def check_options(argv: list[str], names: Collection[str]) -> None:
    """Raise `ValueError` for the first option that is no key. Empty `names` allow all."""
    known = {f"--{name}" for name in names} | {"--config"}
    for argument in argv:
        is_option = argument.startswith("--") or re.match(r"-[a-z]\w", argument)  # a negative number is a value
        name = argument.split("=")[0]
        key = name.lstrip("-").replace("-", "_")
        is_known = name.startswith("--") and known & {f"--{key}", f"--{key.removeprefix('no_')}"}
        if names and is_option and not is_known:
            cure = f": {RENAMED[key]}" if key in RENAMED else nearest(cut(name), known)
            raise InputError(f"unknown option {short(argument)}{cure}.")


def launcher_keys() -> list[str]:
    """
    Return the launcher's precision and device as command-line arguments.

    Raises:
        `ValueError`: The launcher is set to several GPUs or to fp16, and this machine has no GPU.
    """
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION")
    if precision is None:
        return []
    on_cpu = os.environ.get("ACCELERATE_USE_CPU")  # not set if the launcher starts one process per GPU
    use_cpu = True
    if on_cpu != "True":
        import torch  # which takes seconds

        use_cpu = not torch.cuda.is_available()
    if on_cpu is None and use_cpu:
        raise ValueError(
            "accelerate launch is configured for several GPUs, but torch finds no GPU. Launch with "
            "--config_file accelerate_configs/cpu.yaml, or run this script with python."
        )
    if use_cpu and precision == "fp16":
        raise ValueError("mixed_precision=fp16 of the launcher needs a GPU. Launch with --mixed_precision no or bf16.")
    if use_cpu and precision == "bf16":
        print("This run computes in bf16 on the CPU, because the launcher sets mixed_precision=bf16.", file=sys.stderr)
    keys = {"bf16": precision == "bf16", "fp16": precision == "fp16", "use_cpu": use_cpu}
    return [f"--{key}={value}" for key, value in keys.items()]
