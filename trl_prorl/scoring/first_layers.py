"""
Trials of a model by its first layers alone.

A decoder repeats its layers: a trial with a few tokens tells as much of two of them as of all 28, and costs a tenth,
because every forward reads all weights. The layers that stay are the first ones that include every kind of layer that
the model has, so that a trouble which only one kind shows is found.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch


LEAST = 2  # a layer that reads embeddings, and one that reads the output of another
# The names under which modules of transformers and PEFT keep the place of their layer, in which all layers differ.
PLACES = ("layer_idx", "layer_id", "layer_number", "block_idx", "target_name")


def try_first_layers(model: torch.nn.Module, trial: Callable[[], str | None]) -> str | None:
    """
    Try a model by its first layers, and by all of them where that finds something.

    Args:
        model (`torch.nn.Module`): A model of transformers, with or without adapters.
        trial (`Callable[[], str | None]`): Computes with the model, and returns what is wrong, or `None`.

    Returns:
        `str` or `None`: What is wrong with the whole model. A complaint about the first layers alone does not count:
        they are not the model, and may fail where it does not.
    """
    with first_layers(model) as left_out:
        reason = trial()
    if reason is not None and left_out > 0:
        reason = trial()
    return reason


@contextmanager
def first_layers(model: torch.nn.Module) -> Iterator[int]:
    """
    Leave a model only its first layers while this lasts, in place: the fewest that include every kind of its layers.
    A model whose layers are not found keeps them all. Yields how many are left out.
    """
    layers = decoder_layers(model)
    if layers is None:
        yield 0
        return
    kept = number_with_every_kind(layers, model.config.get_text_config())
    others = list(layers[kept:])
    del layers[kept:]
    try:
        yield len(others)
    finally:
        layers.extend(others)


def decoder_layers(model: torch.nn.Module) -> torch.nn.ModuleList | None:
    """Find the list of a model's layers; `None` if there is no such list, or more than one."""
    number = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    found = [module for module in lists if len(module) == number]
    return found[0] if len(found) == 1 else None


def number_with_every_kind(layers: torch.nn.ModuleList, config: Any) -> int:
    """Count how many of the first layers include every kind of them, at least `LEAST`."""
    kinds = []
    last_new = 0
    for place, layer in enumerate(layers):
        kind = layer_kind(layer, place, len(layers), config)
        if kind not in kinds:
            kinds.append(kind)
            last_new = place
    return max(LEAST, last_new + 1)


def layer_kind(layer: torch.nn.Module, place: int, number: int, config: Any) -> dict[str, Any]:
    """
    Collect everything in which a layer may differ from another but for the values of its weights: classes, settings,
    hooks and replaced methods of its modules, shapes, dtypes, devices and training of its tensors, and its entry in
    every list of the configuration that has one for each of the `number` layers.
    """
    kind = {}
    for name, module in layer.named_modules():
        kind[name] = (type(module), describe(vars(module)))
    for key, value in vars(config).items():
        if isinstance(value, (list, tuple)) and len(value) == number:
            kind[f"config.{key}"] = value[place]
    return kind


def describe(value: Any) -> Any:
    """Describe a value of an attribute, as far as two layers can be compared by it."""
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device)):
        return value
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.dtype, value.device, value.requires_grad)
    if isinstance(value, Mapping):
        entries = []
        for key, entry in value.items():
            if key not in PLACES:
                name = key if isinstance(key, str) else None  # a hook's is a number that no other hook has
                entries.append((name, describe(entry)))
        return entries
    if isinstance(value, (list, tuple)):
        return [describe(entry) for entry in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    name = getattr(value, "__qualname__", None)  # of a function, as one that replaces a forward
    return type(value) if name is None else name
