"""
Active dropout raises an error: it adds noise to every KL, and a reused log-probability would be another network's.
Other randomness is found at the first batch (fast/first_batch.py).
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from .recipe_yaml import RATES


WHY = (
    "Dropout is active, so two forward passes of the same weights differ: a KL is not 0 where it should be, and a "
    "reused log-probability belongs to another network."
)


def check_dropout(model: torch.nn.Module) -> None:
    """
    Raise `ValueError` for active dropout of a module, or for a rate that a layer applies itself, which TRL's
    `disable_dropout` does not reach.
    """
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Dropout):
            if module.p > 0:
                raise ValueError(f"{name} has a dropout rate of {module.p}. {WHY} Set disable_dropout: true.")
            continue
        for key, rate in vars(module).items():
            is_rate = isinstance(rate, (int, float)) and not isinstance(rate, bool) and rate > 0
            if is_rate and RATES.search(key):
                cure = _cure(model, key, rate)
                raise ValueError(f"{name} has a dropout rate of {rate} ({key}). {WHY} {cure}")


def _cure(model: torch.nn.Module, key: str, rate: float) -> str:
    # Mixtral's `router_jitter_noise` is its layers' `jitter_noise`.
    settings = model.config.to_dict()
    keys = [other for other, value in settings.items() if key in other and value == rate]
    setting = keys[0] if keys else key
    return (
        f"disable_dropout does not change it: load the model with {setting}=0.0, in a recipe model_init_kwargs: "
        f"{{{setting}: 0.0}}."
    )


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
