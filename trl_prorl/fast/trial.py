"""
Trials of the policy itself with a few tokens: does it give the same numbers packed, and sampled compactly?

[`on_trial`] is the one place where a policy is changed for that, and put back. It leaves the policy its first layers
alone: a decoder repeats its layers, so a trial tells as much of two of them as of all 28, and costs a tenth, because
every forward reads all weights. The layers that stay are the first ones that include every kind of layer that the
model has, so that a trouble which only one kind shows is found.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from ..launch.dropout import evaluation_mode


LEAST = 2  # a layer that reads embeddings, and one that reads the output of another
# The names under which modules of transformers and PEFT keep the place of their layer, in which all layers differ.
PLACES = ("layer_idx", "layer_id", "layer_number", "block_idx", "target_name")
PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device)


def try_model(model: torch.nn.Module, trial: Callable[[], str | None]) -> str | None:
    """
    Try a model by its first layers, and by all of them where that finds something.

    Args:
        model (`torch.nn.Module`): A model of transformers, with or without adapters.
        trial (`Callable[[], str | None]`): Computes with the model, and returns what is wrong, or `None`.

    Returns:
        `str` or `None`: What is wrong with the whole model. A complaint about the first layers alone does not count:
        they are not the model, and may fail where it does not.
    """
    with on_trial(model, first_layers=True) as left_out:
        reason = trial()
    if reason is not None and left_out > 0:
        with on_trial(model, first_layers=False):
            reason = trial()
    return reason


@contextmanager
def on_trial(model: torch.nn.Module, first_layers: bool) -> Iterator[int]:
    """
    Put a model into evaluation mode while this lasts, and leave it, in place, only the fewest first layers that
    include every kind of its layers. Afterwards layers, modes and random states are what they were.

    Args:
        model (`torch.nn.Module`): The model.
        first_layers (`bool`): Whether layers are left out. A model whose layers are not found keeps them all.

    Yields how many layers are left out.
    """
    layers = decoder_layers(model) if first_layers else None
    others = []
    if layers is not None:
        kept = number_with_every_kind(layers, model.config.get_text_config())
        others = list(layers[kept:])
        del layers[kept:]
    try:
        with torch.random.fork_rng(devices=on_gpu(next(model.parameters()).device)), evaluation_mode(model):
            yield len(others)
    finally:
        if layers is not None:
            layers.extend(others)


def on_gpu(device: torch.device) -> list[torch.device]:
    return [device] if device.type == "cuda" else []


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


def layer_kind(layer: torch.nn.Module, place: int, number: int, config: Any) -> dict[Any, Any]:
    """
    Collect everything in which a layer may differ from another but for the values of its weights: classes, settings,
    hooks and replaced methods of its modules, shapes, dtypes, devices and training of its tensors, and its entry in
    every list of the configuration that has one for each of the `number` layers.
    """
    kind: dict[Any, Any] = {}
    for path, module in layer.named_modules():
        kind[path] = type(module)
        for attribute, value in vars(module).items():
            if attribute == "_modules":  # which have paths of their own
                continue
            entries = value if isinstance(value, Mapping) else {attribute: value}
            for index, (key, entry) in enumerate(entries.items()):
                if key not in PLACES:
                    name = key if isinstance(key, str) else index  # a hook's key is a number that no other hook has
                    kind[path, attribute, name] = entry if isinstance(entry, PLAIN) else describe(entry)
    for key, value in vars(config).items():
        if isinstance(value, (list, tuple)) and len(value) == number:
            kind[f"config.{key}"] = value[place]
    return kind


def describe(value: Any) -> Any:
    """Describe a value of an attribute, as far as two layers can be compared by it."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.dtype, value.device, value.requires_grad)
    if isinstance(value, Mapping):
        entries = []
        for key, entry in value.items():
            if key not in PLACES:
                entries.append((key if isinstance(key, str) else None, describe(entry)))
        return entries
    if isinstance(value, (list, tuple)):
        return [describe(entry) for entry in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    name = getattr(value, "__qualname__", None)  # of a function, as one that replaces a forward
    return type(value) if name is None else name


def tokens(number: int, vocabulary: int) -> torch.Tensor:
    """Spread ids over the vocabulary like multiples of the golden ratio over a circle: no two neighbours are alike."""
    places = torch.arange(1, number + 1, dtype=torch.float64) * ((math.sqrt(5) - 1) / 2)
    return (places.frac() * vocabulary).long().clamp(max=vocabulary - 1)


def first_line(error: Exception) -> str:
    """Return the kind of an error and the beginning of its message, without a full stop."""
    lines = str(error).strip().splitlines()
    line = lines[0][:160].rstrip(".") if lines else ""
    return f"{type(error).__name__}: {line}"
