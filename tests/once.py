"""
What libraries do again and again, done once: half the time of a training of a test's size that saves. Nothing of it is
what a test looks at.
"""

import functools
import importlib.metadata
import os

import jinja2
import torch
from accelerate.utils import imports, other

from trl_prorl.cli import environment
from trl_prorl.run import provenance


def do_once() -> None:
    """For this process and its forks."""
    # PEFT's metadata are parsed whenever accelerate asks whether PEFT is there.
    importlib.metadata.metadata = functools.cache(importlib.metadata.metadata)
    importlib.metadata.version = environment.version = functools.cache(importlib.metadata.version)
    # accelerate looks for a dozen of packages whenever it is made.
    imports._is_package_available = functools.cache(imports._is_package_available)
    # It walks a model for compiled modules whenever it is unwrapped, several times a step.
    other.has_compiled_regions = lambda module: False
    # The templates of model cards, PEFT's and ours, are compiled at every save.
    jinja2.Environment.compile = functools.cache(jinja2.Environment.compile)
    # git is asked for the commit at the beginning of every run.
    provenance.git_commit = functools.cache(environment.git_commit)
    # A file outlives a process that is killed; a power loss is the soak's to feign.
    os.fsync = lambda descriptor: None
    # A DataLoader's worker that does not end by itself is waited for, for five seconds.
    torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.1
    # The stack is formatted whenever torch remembers a seed for an accelerator that is not there.
    for accelerator in (torch.cuda, torch.xpu, torch.mtia):
        if not accelerator.is_available():
            accelerator.manual_seed_all = lambda seed: None
