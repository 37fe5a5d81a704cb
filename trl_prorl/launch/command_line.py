"""
The command line of a training. Help on our own keys is printed at once, and a misspelt key is refused at once; what
trains is imported afterwards, which takes seconds.
"""

import ast
import dataclasses
import importlib.util
import os
import re
import sys
from collections.abc import Collection
from pathlib import Path

from ..ending import DEBUG, NOTHING_BEGUN, announce, as_bad_input, end_at_once, in_one_line
from ..errors import InputError
from ..keys import RENAMED, ProlongedKeys, TaskKeys
from ..tasks.plugin import without_plugins
from ..tasks.registry import check_name
from ..text import cut, nearest, short
from .help import HELP, help_text
from .recipe_yaml import check_recipe, load_recipe, merge
from .shipped_recipes import with_recipe


# The files in which others declare keys.
DECLARE = {
    "transformers": ("training_args.py",),
    "trl": ("scripts/utils.py", "trainer/base_config.py", "trainer/grpo_config.py", "trainer/model_config.py"),
}


def main(default_recipe: str | Path | None = None, argv: list[str] | None = None) -> None:
    """
    Run the command line of a recipe script. Without a recipe the default one is run; further arguments override it.
    Input that cannot be used is one line on stderr and exit code 2; a run that begins and has to stop is one line and
    exit code 1; Ctrl-C is one line and exit code 130. An unforeseen error keeps its traceback, and with `--debug` any.
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
    Check a command line and its recipe as far as that takes no long import: the names of keys, of the recipe and of
    the task. `--help` prints and ends the process.

    Args:
        default_recipe (`str` or `Path`, *optional*): The recipe if none is given. It is trained with the launcher's
            precision and device, unless the command line gives others. Without either recipe, the command line gives
            all keys.
        argv (`list[str]`): The command line.

    Returns:
        `list[str]`: With `--config PATH`, and without plugins, which are loaded.

    Raises:
        `ValueError`: Something is wrong. The line names it and the cure.
    """
    if any(argument in HELP for argument in argv):
        print(help_text(argv, default_recipe, program()))
        raise SystemExit(0)
    argv = with_recipe(without_plugins([argument for argument in argv if argument != DEBUG]))
    takes_default = default_recipe is not None and "--config" not in argv
    if takes_default:
        argv = ["--config", str(default_recipe), *argv]
    if not argv:
        raise InputError(f"nothing says what to train: give a recipe ({program()} --help says more).")
    names = key_names()
    check_options(argv, names)
    task = None
    if "--config" in argv:
        layers = load_recipe(argv[argv.index("--config") + 1])
        check_recipe(layers, names)
        task = merge(layers).get("task")
    if "--task" in argv[:-1]:
        task = argv[argv.index("--task") + 1]
    if isinstance(task, str):
        check_name(task)
    return [*argv[:2], *launcher_keys(), *argv[2:]] if takes_default else argv


def recipe_name(argv: list[str]) -> str:
    """Return what a command line of [`check_arguments`] calls its recipe."""
    return argv[argv.index("--config") + 1] if "--config" in argv else "the keys of the command line"


def program() -> str:
    """Return the name that the process was started by."""
    path = Path(sys.argv[0])
    return "python -m trl_prorl.train" if path.parts[-2:] == ("trl_prorl", "train.py") else path.name


def key_names() -> set[str]:
    """
    Return the names of all keys, and a few more: whatever the classes of the files that declare them annotate. Those
    are read as text, because importing them takes seconds, which a wrong key need not. Empty if a file is not where it
    is expected.
    """
    names = {field.name for cls in (TaskKeys, ProlongedKeys) for field in dataclasses.fields(cls)}
    for package, files in DECLARE.items():
        spec = importlib.util.find_spec(package)
        for file in files:
            path = Path(spec.origin).parent / file if spec and spec.origin else None
            if path is None or not path.is_file():
                return set()
            classes = [node for node in ast.parse(path.read_bytes()).body if isinstance(node, ast.ClassDef)]
            fields = [node.target for cls in classes for node in cls.body if isinstance(node, ast.AnnAssign)]
            names |= {target.id for target in fields if isinstance(target, ast.Name)}
    return names


def check_options(argv: list[str], names: Collection[str]) -> None:
    """Raise a `ValueError` that names the first option of a command line that is no key; empty: none is known."""
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
    Write the precision and the device of the launcher as a command line; it is empty without a launcher.

    Raises:
        `ValueError`: This machine has no GPU, and the launcher is set to several, or to fp16.
    """
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION")
    if precision is None:
        return []
    on_cpu = os.environ.get("ACCELERATE_USE_CPU")  # not set where the launcher starts one process a GPU
    use_cpu = True
    if on_cpu != "True":
        import torch  # which takes seconds

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
