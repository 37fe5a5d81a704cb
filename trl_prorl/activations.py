"""Gradient checkpointing of activations, which sampling and scoring without gradient do not need."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def checkpointing_off(model: torch.nn.Module) -> Iterator[None]:
    """
    Switch gradient checkpointing off in this context.

    TRL switches it by transformers' methods, and each time leaves a hook on the input embeddings. In this context TRL
    finds it off and does nothing.
    """
    owners = [module for module in model.modules() if vars(module).get("gradient_checkpointing")]
    for module in owners:
        module.gradient_checkpointing = False
    try:
        yield
    finally:
        for module in owners:
            module.gradient_checkpointing = True
