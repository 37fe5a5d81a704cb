"""
Our packages `tasks` and `eval`, even where a folder of that name in the working directory or beside a script makes
Python take that folder instead.
"""

import importlib.util
import pickle
import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType


ROOT = Path(__file__).parent.parent  # where all our packages are
OURS = ("tasks", "eval")


def own_package(name: str) -> ModuleType:
    """
    Our package of a name: under that name if Python finds ours, else under a name of its own, beside the other
    package.

    Args:
        name (`str`):
            `"tasks"` or `"eval"`.
    """
    present = sys.modules.get(name)
    try:
        spec = present.__spec__ if present is not None else importlib.util.find_spec(name)
    except ValueError:  # a module without a spec
        spec = None
    ours = ROOT / name / "__init__.py"
    if spec is not None and spec.origin is not None and Path(spec.origin).resolve() == ours.resolve():
        return import_module(name)
    under = f"trl_prorl_{name}"
    if under not in sys.modules:
        spec = importlib.util.spec_from_file_location(under, ours, submodule_search_locations=[str(ours.parent)])
        sys.modules[under] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[under])
    return sys.modules[under]


class OursFirst(MetaPathFinder):
    """Finds our packages under their names, whatever is on Python's path."""

    def find_spec(self, name: str, path=None, target=None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [str(ROOT)]) if name in OURS else None


def claim() -> None:
    """
    From now on `tasks` and `eval` are ours, in a process that runs nothing but our own code. It imports nothing, and
    is called before anything else looks for either.
    """
    if not any(isinstance(finder, OursFirst) for finder in sys.meta_path):
        sys.meta_path.insert(0, OursFirst())


def run_claimed(pickled: bytes) -> None:
    """
    Call a function of ours in a process that was spawned, and would look for `eval` elsewhere before it runs a line.

    Args:
        pickled (`bytes`):
            The function and its arguments.
    """
    claim()
    function, arguments = pickle.loads(pickled)
    function(*arguments)


def __getattr__(name: str):
    if name == "tasks":
        return own_package(name)  # when it is asked for: a command may claim the name first
    if name != "evaluate":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if own_package("eval").__name__ != "eval":
        raise ImportError(
            "a package or folder of yours called eval hides ours; rename it, or start the script elsewhere"
        )
    return import_module("eval.passk").evaluate
