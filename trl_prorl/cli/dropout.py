"""Modes and random states of a forward, and dropout that is active. guards/noise.py finds other randomness."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


WHY = "A KL would not be 0 where it should be, and a reused log-probability would belong to another network."


def find_dropout(model: torch.nn.Module) -> str | None:
    """Return a sentence on the first dropout module with a rate; `None` without one."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Dropout) and module.p > 0:
            return f"{name} has a dropout rate of {module.p}. {WHY} Set disable_dropout: true."
    return None


def check_dropout(model: torch.nn.Module) -> None:
    """Raise `ValueError` for a dropout module with a rate."""
    dropout = find_dropout(model)
    if dropout is not None:
        raise ValueError(dropout)


@contextmanager
def own_random_state() -> Iterator[None]:
    """Restore the random states of Python, NumPy and torch after this context."""
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


@contextmanager
def evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """Put every module into evaluation mode, and restore each mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def training_mode(model: torch.nn.Module) -> Iterator[None]:
    with evaluation_mode(model):  # which restores each mode
        model.train()
        yield
