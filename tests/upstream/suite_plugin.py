"""The pytest plugin of a run of TRL's suite: whose classes the tests see, and stand-in data sets.

It is loaded with `-p` before any test module, so the names are replaced before the tests import them, and after
`trl_prorl` has imported TRL's own, from which its classes inherit.
"""

import inspect
import os
import re
import types
from contextlib import nullcontext
from pathlib import Path

import datasets
import pytest
import torch
import trl
from stand_in_models import OWNER, make_all, repository
from stand_in_tokenizers import NUMBERS
from trl import chat_template_utils, import_utils

import trl_prorl


# What the run is told through the environment: whose classes, and where the stand-ins are.
CLASSES = os.environ["UPSTREAM_CLASSES"]
HOME = Path(os.environ["HF_HOME"])
if not (HOME / "stand_in_datasets").is_dir():  # the second run of the suite finds them
    make_all(HOME)

_load_dataset = datasets.load_dataset


def _load_stand_in(path, name=None, **kwargs):
    """`load_dataset`, with a local folder for a name on the Hub."""
    folder = HOME / "stand_in_datasets" / path / (name or "")
    if not folder.is_dir():
        pytest.skip(f"no stand-in for the data set {path}")
    return _load_dataset(str(folder), **kwargs)


datasets.load_dataset = _load_stand_in


def _unknown_package(name):
    """Whether a package is available that this TRL does not know, though the TRL of the suite does: it is not."""
    if name.startswith("is_") and name.endswith("_available"):
        return lambda: False
    raise AttributeError(f"module 'trl.import_utils' has no attribute {name!r}")


import_utils.__getattr__ = _unknown_package

if getattr(chat_template_utils, "_SUPPORTS_RESPONSE_TEMPLATE", False):
    # Tool calls are parsed without jmespath now, for which the tests of an older TRL still ask.
    import_utils.is_jmespath_available = lambda: True

if CLASSES == "prorl":
    trl.GRPOTrainer = trl_prorl.ProRLTrainer
    trl.GRPOConfig = trl_prorl.ProRLConfig
    # The stand-ins' generation config keeps a completion from ending. TRL samples by it, our trainer does not.
    trl_prorl.trainer.plain_generation_config = nullcontext
    _check = trl_prorl.ProRLConfig.__post_init__

    def _on_a_cpu(args):
        """Set `use_cpu` on a machine without a GPU, as the suite's conftest.py does, but before our own checks."""
        args.use_cpu = args.use_cpu or not torch.cuda.is_available()
        _check(args)

    trl_prorl.ProRLConfig.__post_init__ = _on_a_cpu


class _RenumberedTorch(types.ModuleType):
    """The module `torch` as the tests see it: token numbers of Qwen's vocabulary become those of the stand-in."""

    def __getattr__(self, name):
        return getattr(torch, name)

    @staticmethod
    def tensor(data, **kwargs):
        return torch.tensor(_renumbered(data), **kwargs)


def _renumbered(data):
    if isinstance(data, list):
        return [_renumbered(item) for item in data]
    return NUMBERS.get(data, data) if type(data) is int else data


def pytest_collection_modifyitems(items):
    for module in {item.module for item in items}:
        module.torch = _RenumberedTorch("torch")


def pytest_runtest_setup(item):
    """A test is skipped if a model among its parameters, or else in its text, has no stand-in."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    named = f"{OWNER}/(tiny-[A-Za-z0-9_.-]+)"
    found = re.findall(named, " ".join(map(str, parameters)))
    for name in found or re.findall(named, inspect.getsource(inspect.unwrap(item.function))):
        if not repository(HOME / "hub", name).is_dir():
            pytest.skip(f"no stand-in for the model {name}")
