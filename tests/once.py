"""
What libraries do again and again, done once: half the time of a training of a test's size that saves. Nothing of it is
what a test looks at.
"""

import functools
import importlib.metadata
import os

import jinja2
import torch
from accelerate.utils import imports

from trl_prorl.cli import environment


def do_once() -> None:
    """For this process and its forks."""
    # PEFT's metadata are parsed whenever accelerate asks whether PEFT is there.
    importlib.metadata.metadata = functools.cache(importlib.metadata.metadata)
    importlib.metadata.version = environment.version = functools.cache(importlib.metadata.version)
    # accelerate looks for a dozen of packages whenever it is made.
    imports._is_package_available = functools.cache(imports._is_package_available)
    # The templates of model cards, PEFT's and ours, are compiled at every save.
    jinja2.Environment.compile = functools.cache(jinja2.Environment.compile)
    # A file outlives a process that is killed; a power loss is the soak's to feign.
    os.fsync = lambda descriptor: None
    # The stack is formatted whenever torch remembers a seed for a GPU that is not there.
    if not torch.cuda.is_available():
        torch.cuda.manual_seed_all = lambda seed: None
