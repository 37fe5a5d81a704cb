"""
`--plugin FILE`: a Python file of the user's that registers a task or, for the run of a script, has its held-out rows
and its verifier. Only a command line can name one, because recipes are passed around and run no code.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from trl_prorl.errors import InputError
from trl_prorl.tasks import registry


# The functions of a file that stand for a task where a script's run is evaluated; the second may be left out.
ROWS = "held_out_rows"
VERIFY = "verify"
OWN = "own"  # what tables call such rows
HELD_OUT: dict[Path, ModuleType] = {}  # plugins that have them
LOADING: list[str] = []  # the plugin that is being loaded


def load_plugin(file: str, may_have_rows: bool = False) -> None:
    """
    Run the file once, as a module of its own name that finds the files beside it.

    Args:
        file (`str`): The file.
        may_have_rows (`bool`, *optional*, defaults to `False`): Whether it may have held-out rows in the place of a
            task, because it is for an evaluation.

    Raises:
        `InputError`: It is not there, raises, trains, or has nothing that is asked for.
    """
    path = Path(file).expanduser().resolve()
    if path in registry.PLUGINS:
        return
    if not path.is_file() or path.suffix != ".py":
        raise InputError(f"--plugin {file}: there is no such Python file")
    if path.stem in sys.modules:
        raise InputError(f"--plugin {file}: a module called {path.stem} is loaded already; rename the file")
    before = registry.TASKS | registry.PREFIXES
    module = _run(file, path)
    entries = registry.TASKS | registry.PREFIXES
    added = {name: place for name, place in entries.items() if before.get(name) != place}
    has_rows = may_have_rows and hasattr(module, ROWS)
    if not added and not has_rows:
        cure = f"it needs TASKS['NAME'] = '{path.stem}:CLASS'"
        if may_have_rows:
            cure += f" or, for the run of a script, functions {ROWS}() and {VERIFY}(completion, row)"
        raise InputError(f"--plugin {file} registers no task; {cure}")
    for name, place in added.items():
        if not isinstance(name, str):
            raise InputError(f"--plugin {file} registers a task as {name!r}; its name must be a text")
        try:
            registry.class_at(name, place)
        except ValueError as error:
            raise InputError(f"--plugin {file}: {error}") from error
    if has_rows:
        HELD_OUT[path] = module
    registry.PLUGINS.append(path)


def _run(file: str, path: Path) -> ModuleType:
    """Run the file as a module, and return it."""
    sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    sys.modules[path.stem] = module = importlib.util.module_from_spec(spec)
    LOADING.append(file)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InputError(f"--plugin {file} stopped with {type(error).__name__}: {error}") from error
    finally:
        LOADING.remove(file)
    return module


def check_not_loading() -> None:
    """Refuse a training that begins because the script that trains was named as a plugin."""
    if LOADING:
        raise InputError(
            "the file trains when it is loaded, and the run that is evaluated would be set aside; put what trains "
            "below `if __name__ == '__main__':`"
        )


def without_plugins(argv: list[str]) -> list[str]:
    """Load each `--plugin FILE` of a command line, and return the command line without them."""
    rest = []
    words = iter(argv)
    for word in words:
        name, equals, file = word.partition("=")
        if name != "--plugin":
            rest.append(word)
            continue
        if not equals:
            file = next(words, "")
        if not file:
            raise InputError("--plugin needs the path of a Python file after it")
        load_plugin(file)
    return rest
