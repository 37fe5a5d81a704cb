"""
Two names for `tasks` and `eval` in a checkout, where they lie beside `trl_prorl`: `trl_prorl.tasks` and
`trl_prorl.eval`, as in a wheel, and the short ones. Each module is one object under both names.

Both finders hang on an entry of one package's `__path__`, so Python asks them for submodules of that package alone. A
finder in `sys.meta_path` would be asked for every module that any library looks for in vain, which accelerate does
several times in each step.
"""

import sys
from importlib import import_module
from importlib.abc import Loader, PathEntryFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path


PACKAGE = Path(__file__).parent
CHECKOUT = PACKAGE.parent
BESIDE = ("tasks", "eval")
# Entries of a `__path__`; neither is a folder.
LONG_ENTRY = f"{__file__}:long names"
SHORT_ENTRY = f"{__file__}:short names"


class LongNames(PathEntryFinder):
    """Finds `trl_prorl.tasks` and `trl_prorl.eval` beside `trl_prorl`."""

    def find_spec(self, name: str, target=None) -> ModuleSpec | None:
        if name.removeprefix("trl_prorl.") not in BESIDE:
            return None
        return PathFinder.find_spec(name, [str(CHECKOUT)], target)


class ShortNames(PathEntryFinder, Loader):
    """Finds `tasks.sums` as the module `trl_prorl.tasks.sums`."""

    def find_spec(self, name: str, target=None) -> ModuleSpec | None:
        if name.partition(".")[0] not in BESIDE:
            return None  # it is a long name, which the next entry of the path finds
        found = find_spec(f"trl_prorl.{name}")
        if found is None:
            return None
        is_package = found.submodule_search_locations is not None
        return ModuleSpec(name, self, origin=found.origin, is_package=is_package)

    def create_module(self, spec: ModuleSpec):
        module = import_module(f"trl_prorl.{spec.name}")
        spec.loader_state = module.__spec__  # Python replaces it after this call
        _add_short_names(module)
        return module

    def exec_module(self, module) -> None:
        module.__spec__ = module.__spec__.loader_state

    def get_code(self, name: str):
        """Return what `python -m` runs."""
        return find_spec(f"trl_prorl.{name}").loader.get_code(f"trl_prorl.{name}")


def find_long_names(path: list[str]) -> None:
    """Let `trl_prorl`, whose `__path__` is given, find the packages beside it; a wheel has them within it."""
    sys.path_hooks.append(_finder_of)
    if not (PACKAGE / "tasks").is_dir():
        path.append(LONG_ENTRY)


def be_one_module(package: str) -> None:
    """Called by the `__init__.py` of a package that is imported under its short name."""
    module = import_module(f"trl_prorl.{package}")
    _add_short_names(module)
    sys.modules[package] = module


def _finder_of(entry: str) -> PathEntryFinder:
    if entry == LONG_ENTRY:
        return LongNames()
    if entry == SHORT_ENTRY:
        return ShortNames()
    raise ImportError(entry)


def _add_short_names(module) -> None:
    """Let a package find its modules by their short names, too."""
    path = getattr(module, "__path__", None)
    if path is not None and SHORT_ENTRY not in path:
        path.insert(0, SHORT_ENTRY)
