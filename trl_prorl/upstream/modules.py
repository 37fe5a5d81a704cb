"""A model's modules, listed once, and their gradient checkpointing."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedType
from peft import PeftModel

from ..parts import Part


Parameters = Mapping[str, torch.nn.Parameter]  # a model's, by name


class Modules(Part):
    """
    The modules and parameters of a model, listed once a generation batch: with LoRA, 28 layers have 2,900 modules, and
    a walk through them takes 2 to 3 ms.

    They are listed again for each generation batch (a callback may add an adapter), resume and training. Rank growth
    keeps them.

    Args:
        model (`Callable`): Returns the model, which FSDP replaces.
    """

    def __init__(self, model: Callable[[], torch.nn.Module]):
        self._model = model
        self.begin()

    def begin(self) -> None:
        self._all: list[torch.nn.Module] | None = None
        self._parameters: dict[str, torch.nn.Parameter] | None = None

    def on_generation(self, step: int) -> None:
        self.begin()

    def load(self, folder: Path, changed: Mapping[str, Any]) -> None:
        self.begin()

    def all(self) -> list[torch.nn.Module]:
        if self._all is None:
            self._all = list(self._model().modules())
        return self._all

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        if self._parameters is None:
            self._parameters = dict(self._model().named_parameters())
        return self._parameters


def is_sharded(accelerator) -> bool:
    """Return whether FSDP or DeepSpeed divides weights, gradients or the optimizer's state."""
    return accelerator.distributed_type in (DistributedType.FSDP, DistributedType.DEEPSPEED)


def unwrap_adapter(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model itself, without PEFT's wrapper; its layers may have adapters."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


def is_plain_linear(layer: torch.nn.Module | None) -> bool:
    """Return whether a layer is a linear one of torch, and nothing else is computed with it."""
    return (
        type(layer) is torch.nn.Linear
        and "forward" not in vars(layer)  # replaced, to cast
        and not (layer._forward_hooks or layer._forward_pre_hooks)
    )


@contextmanager
def checkpointing_off(modules: Iterable[torch.nn.Module]) -> Iterator[None]:
    """
    Switch gradient checkpointing off in this context, for sampling and scoring without gradient.

    TRL switches it by transformers' methods, and each time leaves a hook on the input embeddings. In this context TRL
    finds it off and does nothing.
    """
    owners = [module for module in modules if vars(module).get("gradient_checkpointing")]
    for module in owners:
        module.gradient_checkpointing = False
    try:
        yield
    finally:
        for module in owners:
            module.gradient_checkpointing = True
