"""
`--plugin FILE`: a Python file of the user's that registers a task. Only a command line can name one, because recipes
are passed around and run no code.
"""

import importlib.util
import sys
from pathlib import Path

from .. import tasks
from ..errors import InputError


def load_plugin(file: str) -> None:
    """
    Run the file once, as a module of its own name that finds the files beside it.

    Raises:
        `InputError`: It is not there, raises, or registers nothing, or what is no class.
    """
    path = Path(file).expanduser().resolve()
    registry = tasks.registry
    if path in registry.PLUGINS:
        return
    if not path.is_file() or path.suffix != ".py":
        raise InputError(f"--plugin {file}: there is no such Python file")
    if path.stem in sys.modules:
        raise InputError(f"--plugin {file}: a module called {path.stem} is loaded already; rename the file")
    before = registry.TASKS | registry.PREFIXES
    sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    sys.modules[path.stem] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InputError(f"--plugin {file} stopped with {type(error).__name__}: {error}") from error
    entries = registry.TASKS | registry.PREFIXES
    added = {name: place for name, place in entries.items() if before.get(name) != place}
    if not added:
        raise InputError(f"--plugin {file} registers no task; it needs TASKS['NAME'] = '{path.stem}:CLASS'")
    for name, place in added.items():
        if not isinstance(name, str):
            raise InputError(f"--plugin {file} registers a task as {name!r}; its name must be a text")
        try:
            registry.class_at(name, place)
        except ValueError as error:
            raise InputError(f"--plugin {file}: {error}") from error
    registry.PLUGINS.append(path)


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
