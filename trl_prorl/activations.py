"""Gradient checkpointing of activations, which sampling and scoring without a gradient do not need."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def checkpointing_off(model: torch.nn.Module) -> Iterator[None]:
    """
    Switch gradient checkpointing off in this context.

    TRL switches it off and on by transformers' methods, and each time a hook on the input embeddings is left behind.
    In this context TRL finds it off, and leaves it alone.
    """
    owners = [module for module in model.modules() if vars(module).get("gradient_checkpointing")]
    for module in owners:
        module.gradient_checkpointing = False
    try:
        yield
    finally:
        for module in owners:
            module.gradient_checkpointing = True
