"""
Code that the command line names: `--plugin`, `--reward` and `--verify`.

A file registers a task, has reward functions and a verifier, or the held-out rows of a script's run. Recipes and run
folders are shared, so what they name is imported only after the command line has named it.
"""

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from trl_prorl.cli.ending import Parser
from trl_prorl.errors import InputError
from trl_prorl.tasks import registry
from trl_prorl.text import nearest


# Functions of a plugin that replace a task when a script's run is evaluated. The second is optional.
ROWS = "held_out_rows"
VERIFY = "verify"
OWN = "own"  # task name of a user's rows
HELD_OUT: dict[Path, ModuleType] = {}  # plugins that define these functions
MODULES: dict[str, ModuleType] = {}  # code that the command line has named, by `FILE.py` or `PACKAGE.MODULE`
LOADING: list[str] = []  # the plugin that is being loaded


def load_plugin(place: str, option: str | None = None) -> None:
    """
    Run a file once, as a module of its own name that can import the files next to it, or import an installed module.

    Args:
        place (`str`): `FILE.py`, or `PACKAGE.MODULE`.
        option (`str`, *optional*): The option that names it, for messages; by default `--plugin PLACE`.

    Raises:
        `InputError`: If it is missing, raises an exception, trains, or has neither a task nor a function.
    """
    option = option or f"--plugin {place}"
    is_file = place.endswith(".py") or not place.replace(".", "").isidentifier()
    path = Path(place).expanduser().resolve()
    name = str(path) if is_file else place
    if name in registry.PLUGINS:
        return
    if is_file and (not path.is_file() or path.suffix != ".py"):
        raise InputError(f"{option}: there is no such Python file")
    if is_file and path.stem in sys.modules:
        raise InputError(f"{option}: a module called {path.stem} is already loaded. Rename the file")
    before = registry.TASKS | registry.PREFIXES
    LOADING.append(name)
    try:
        module = _run(path) if is_file else _import(place)
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = f" ({path.name}, line {lines[-1]})" if lines else ""
        raise InputError(f"{option} raised {type(error).__name__}: {error}{line}") from error
    finally:
        LOADING.remove(name)
    has_function = any(map(inspect.isfunction, vars(module).values()))
    if is_file and not has_function and registry.TASKS | registry.PREFIXES == before:
        raise InputError(
            f"{option} registers no task and has no function. Add a reward function, or TASKS['NAME'] = "
            f"'{path.stem}:CLASS'"
        )
    if hasattr(module, ROWS):
        HELD_OUT[path] = module
    MODULES[path.name if is_file else place] = module
    registry.PLUGINS[name] = Path(module.__file__)


def _run(path: Path) -> ModuleType:
    """Run the file as a module, and return the module."""
    sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    sys.modules[path.stem] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _import(name: str) -> ModuleType:
    """Import a module that is installed, or lies below the working directory, as TRL does."""
    sys.path.append(os.getcwd())
    return importlib.import_module(name)


def check_not_loading() -> None:
    """Raise `InputError` if a training starts because the training script itself was passed as a plugin."""
    if LOADING:
        raise InputError(
            "the plugin starts a training when it is loaded, which would replace the run to evaluate. Put the "
            "training code below `if __name__ == '__main__':`"
        )


def function_names(module: ModuleType) -> list[str]:
    """Return the names of the functions that a module defines, sorted; not those that it imports."""
    return sorted(
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    )


def split_reference(reference: str, key: str) -> tuple[str, str]:
    """Return the two parts of `FILE.py:FUNCTION` or `PACKAGE.MODULE.FUNCTION`. `key` is for the message."""
    place, colon, name = reference.rpartition(":")
    if not colon:
        place, _, name = reference.rpartition(".")
    if not place or name in ("", "py") or place.endswith(".py") != bool(colon):
        raise InputError(f"{key}={reference!r}: write FILE.py:FUNCTION or PACKAGE.MODULE.FUNCTION")
    return place, name


def find_function(reference: str, key: str) -> Callable:
    """
    Return the function of a [`split_reference`].

    Raises:
        `InputError`: The command line has not named its file or module, or there is no such function.
    """
    place, name = split_reference(reference, key)
    module = MODULES.get(Path(place).name if place.endswith(".py") else place)
    if module is None:
        raise InputError(
            f"{key}={reference!r} is code, and runs only if the command line names it: add --plugin {place}"
        )
    function = getattr(module, name, None)
    if not callable(function):
        names = function_names(module)
        raise InputError(
            f"{key}={reference!r}: {place} has no function {name!r}{nearest(name, names)}. Its functions: "
            f"{', '.join(names) or 'none'}"
        )
    return function


def without_plugins(argv: list[str]) -> list[str]:
    """
    Load the code that a command line names by `--plugin`, `--reward` and `--verify`. Return the other arguments, then
    all values of `--reward` after one option, and `--verify`.
    """
    parser = Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--plugin", nargs="?", const="", action="append", default=[])
    parser.add_argument("--reward", nargs="+", action="extend", default=[])
    parser.add_argument("--verify", nargs=1, default=[])
    args, rest = parser.parse_known_args(argv)
    for place in args.plugin:
        load_plugin(place)
    for key in ("reward", "verify"):
        references = getattr(args, key)
        for reference in references:
            load_plugin(split_reference(reference, f"--{key}")[0], f"--{key} {reference}")
        if references:
            rest += [f"--{key}", *references]
    return rest
