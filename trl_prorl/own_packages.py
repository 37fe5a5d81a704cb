"""
Our packages `tasks` and `eval`, even where a folder of that name in the working directory or beside a script makes
Python take that folder instead.
"""

import importlib.util
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType


ROOT = Path(__file__).parent.parent  # where all our packages are


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
    return _load(name, f"trl_prorl_{name}")


def claim(name: str) -> None:
    """Import our package under its name, in a process that runs nothing but our own code."""
    _load(name, name)


def _load(name: str, under: str) -> ModuleType:
    if under not in sys.modules:
        folder = ROOT / name
        spec = importlib.util.spec_from_file_location(
            under, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        sys.modules[under] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[under])
    return sys.modules[under]


tasks = own_package("tasks")
