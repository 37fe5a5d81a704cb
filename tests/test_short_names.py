"""`tasks` and `eval` lie beside `trl_prorl` in a checkout: they alone are found within it, each as one object."""

import pkgutil
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import trl_prorl


ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["tasks", "eval", "tasks.registry", "eval.run_folder", "eval.run_folder.reading"])
def test_a_module_is_one_object_under_both_names(name):
    assert import_module(name) is import_module(f"trl_prorl.{name}")


def test_nothing_else_of_the_checkout_is_found_within_the_package():
    assert [name for name in ("trl_prorl", "tests", "study", "docs") if find_spec(f"trl_prorl.{name}")] == []


def test_the_packages_can_be_walked():
    names = [module.name for module in pkgutil.walk_packages(trl_prorl.__path__, "trl_prorl.")]
    assert "trl_prorl.record.meter" in names and len(names) == len(set(names)) < 300
    assert not any(name.startswith("trl_prorl.trl_prorl") for name in names)


@pytest.mark.parametrize("name", ["tasks", "trl_prorl.tasks"])
def test_either_name_starts_a_command(name):
    done = subprocess.run([sys.executable, "-m", name, "list"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "reverse_digits" in done.stdout, done.stderr[-2000:]
