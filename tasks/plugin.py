"""
`--plugin FILE`: load a user's Python file that registers a task, or that defines the held-out rows and the verifier of
a script's run. Only the command line can name such a file: recipes are shared, so they must not run code.
"""

import argparse
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from trl_prorl.errors import InputError
from trl_prorl.tasks import registry


# Functions of a plugin that replace a task when a script's run is evaluated. The second is optional.
ROWS = "held_out_rows"
VERIFY = "verify"
OWN = "own"  # task name of such rows in tables
HELD_OUT: dict[Path, ModuleType] = {}  # plugins that define these functions
LOADING: list[str] = []  # the plugin that is being loaded


def load_plugin(file: str, may_have_rows: bool = False) -> None:
    """
    Run the file once, as a module of its own name that can import the files next to it.

    Args:
        file (`str`): path of the file.
        may_have_rows (`bool`, *optional*, defaults to `False`): whether the file may define held-out rows instead of a
            task, as it may for an evaluation.

    Raises:
        `InputError`: If the file is missing, raises an exception, trains, or registers nothing.
    """
    path = Path(file).expanduser().resolve()
    if path in registry.PLUGINS:
        return
    if not path.is_file() or path.suffix != ".py":
        raise InputError(f"--plugin {file}: there is no such Python file")
    if path.stem in sys.modules:
        raise InputError(f"--plugin {file}: a module called {path.stem} is already loaded. Rename the file")
    before = registry.TASKS | registry.PREFIXES
    module = _run(file, path)
    has_rows = may_have_rows and hasattr(module, ROWS)
    if registry.TASKS | registry.PREFIXES == before and not has_rows:
        cure = f"Add TASKS['NAME'] = '{path.stem}:CLASS'"
        if may_have_rows:
            cure += f" or, to evaluate a script's run, the functions {ROWS}() and {VERIFY}(completion, row)"
        raise InputError(f"--plugin {file} registers no task. {cure}")
    if has_rows:
        HELD_OUT[path] = module
    registry.PLUGINS.append(path)


def _run(file: str, path: Path) -> ModuleType:
    """Run the file as a module, and return the module."""
    sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    sys.modules[path.stem] = module = importlib.util.module_from_spec(spec)
    LOADING.append(file)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        place = f" ({path.name}, line {lines[-1]})" if lines else ""
        raise InputError(f"--plugin {file} raised {type(error).__name__}: {error}{place}") from error
    finally:
        LOADING.remove(file)
    return module


def check_not_loading() -> None:
    """Raise `InputError` if a training starts because the training script itself was passed as a plugin."""
    if LOADING:
        raise InputError(
            "the plugin starts a training when it is loaded, which would replace the run to evaluate. Put the "
            "training code below `if __name__ == '__main__':`"
        )


def without_plugins(argv: list[str]) -> list[str]:
    """Load each `--plugin FILE` of a command line, and return the remaining arguments."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--plugin", nargs="?", const="", action="append", default=[])
    args, rest = parser.parse_known_args(argv)
    for file in args.plugin:
        load_plugin(file)
    return rest
