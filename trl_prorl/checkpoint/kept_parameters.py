"""Parameters that stay the same objects, of the same dtype, where PEFT loads an adapter."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def kept_parameters(model: torch.nn.Module) -> Iterator[None]:
    """
    While this lasts, PEFT may load adapters into a model; afterwards the model has the parameters that it had, with
    the values that were loaded.

    PEFT 0.21 replaces the parameters of an adapter in bf16 or fp16 by new ones in fp32 when it loads one. TRL keeps
    the adapter of a quantised model in bf16, so that a resumed run would train other numbers than the run that it
    continues, and parts that hold its parameters would hold those that are no longer trained.

    Args:
        model (`torch.nn.Module`): The policy.
    """
    before = dict(model.named_parameters())
    yield
    for name, param in [*model.named_parameters()]:
        old = before.get(name)
        if old is not None and old is not param:
            old.data = param.data.to(old.dtype)
            old.requires_grad_(param.requires_grad)
            owner, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(owner), leaf, old)
