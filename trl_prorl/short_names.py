"""
Two names for `tasks` and `eval` in a checkout, where they lie beside `trl_prorl`: `trl_prorl.tasks` and
`trl_prorl.eval`, as in a wheel, and the short ones. Each module is one object under both names.
"""

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path


CHECKOUT = Path(__file__).parent.parent


class LongNames(MetaPathFinder):
    """
    Finds `trl_prorl.tasks` and `trl_prorl.eval` beside `trl_prorl`, where a wheel has not got them within it. It comes
    first: an editable install of another checkout knows these names too.
    """

    def find_spec(self, name: str, path=None, target=None) -> ModuleSpec | None:
        package, _, short = name.rpartition(".")
        beside = package == "trl_prorl" and short in ("tasks", "eval") and not (CHECKOUT / package / short).is_dir()
        return PathFinder.find_spec(name, [str(CHECKOUT)], target) if beside else None


class ShortNames(MetaPathFinder, Loader):
    """Finds the modules of a package under its short name."""

    def __init__(self, package: str):
        self.package = package

    def find_spec(self, name: str, path=None, target=None) -> ModuleSpec | None:
        found = find_spec(f"trl_prorl.{name}") if name.startswith(f"{self.package}.") else None
        if found is None:
            return None
        is_package = found.submodule_search_locations is not None
        return ModuleSpec(name, self, origin=found.origin, is_package=is_package)

    def create_module(self, spec: ModuleSpec):
        module = import_module(f"trl_prorl.{spec.name}")
        spec.loader_state = module.__spec__  # Python replaces it after this call
        return module

    def exec_module(self, module) -> None:
        module.__spec__ = module.__spec__.loader_state

    def get_code(self, name: str):
        """What `python -m` runs."""
        return find_spec(f"trl_prorl.{name}").loader.get_code(f"trl_prorl.{name}")


def be_one_module(package: str) -> None:
    """Called by the `__init__.py` of a package that is imported under its short name."""
    sys.modules[package] = import_module(f"trl_prorl.{package}")
    sys.meta_path.insert(0, ShortNames(package))
