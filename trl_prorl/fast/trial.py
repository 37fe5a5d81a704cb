"""
A trial of the policy itself with a few tokens: [`on_trial`] is the one place where a policy is changed for that, and
put back.

It leaves the policy its first layers alone: a decoder repeats its layers, so a trial tells as much of two of them as
of all 28, and costs a tenth, because every forward reads all weights. The layers that stay are the first ones that
include every kind of layer that the model has, so that a trouble which only one kind shows is found. A new adapter
changes nothing, and one of its factors gets no gradient, so adapters have other weights meanwhile.

It is the policy itself and no copy of two layers: a forward that somebody has replaced (TRL replaces the model's, for
its fused head) calls the original's layers, wherever it is copied to, and a copy would take memory for the state of
quantised weights.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from peft import PeftModel

from ..launch.dropout import evaluation_mode


MIN_LAYERS = 2  # one that reads embeddings, and one that reads the output of another
NOISE = 0.02  # of adapters
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
    Put a model into evaluation mode while this lasts, add noise to its active adapters, and leave it, in place, only
    the fewest first layers that include every kind of its layers. Afterwards layers, weights, modes and random states
    are what they were, to the bit.

    Args:
        model (`torch.nn.Module`): The model.
        first_layers (`bool`): Whether layers are left out. A model whose layers are not found keeps them all.

    Yields how many layers are left out.
    """
    device = next(model.parameters()).device
    own_random_state = torch.random.fork_rng([device] if device.type == "cuda" else [])
    with keep_first_layers(model if first_layers else None) as left_out, own_random_state:
        with evaluation_mode(model), noise_in_adapters(model):
            yield left_out


@contextmanager
def keep_first_layers(model: torch.nn.Module | None) -> Iterator[int]:
    """Leave layers out while this lasts, and yield how many; none without a model."""
    layers = None if model is None else decoder_layers(model)
    if layers is None:
        yield 0
        return
    kept = count_first_layers(layers, model.config.get_text_config())
    others = list(layers[kept:])
    del layers[kept:]
    try:
        yield len(others)
    finally:
        layers.extend(others)


@contextmanager
def noise_in_adapters(model: torch.nn.Module) -> Iterator[None]:
    """Add noise to the active LoRA adapters while this lasts, the same in every process."""
    active = set(model.active_adapters) if isinstance(model, PeftModel) else set()
    params = [param for name, param in model.named_parameters() if "lora_" in name and active & set(name.split("."))]
    before = [param.detach().clone() for param in params]
    source = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():
            for param in params:
                noise = torch.randn(param.shape, generator=source) * NOISE
                param.add_(noise.to(param))
        yield
    finally:
        with torch.no_grad():
            for param, old in zip(params, before, strict=True):
                param.copy_(old)


def decoder_layers(model: torch.nn.Module) -> torch.nn.ModuleList | None:
    """Find the list of a model's layers; `None` if there is no such list, or more than one."""
    number = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    found = [module for module in lists if len(module) == number]
    return found[0] if len(found) == 1 else None


def count_first_layers(layers: torch.nn.ModuleList, config: Any) -> int:
    """Count how many of the first layers include every kind of them, at least `MIN_LAYERS`."""
    per_layer = [value for value in vars(config).values() if isinstance(value, (list, tuple))]
    per_layer = [value for value in per_layer if len(value) == len(layers)]
    kinds = []
    last_new = 0
    for place, layer in enumerate(layers):
        modules = {path: describe_module(module) for path, module in layer.named_modules()}
        kind = (modules, [value[place] for value in per_layer])
        if kind not in kinds:
            kinds.append(kind)
            last_new = place
    return max(MIN_LAYERS, last_new + 1)


def describe_module(module: torch.nn.Module) -> list[Any]:
    """
    Describe everything in which a module may differ from another but for the values of its weights: class, settings,
    hooks, replaced methods, and shapes, dtypes, devices and training of its tensors.
    """
    found: list[Any] = [type(module)]
    for name, value in vars(module).items():
        if name == "_modules":  # which have paths of their own
            continue
        entries = value.items() if isinstance(value, Mapping) else [(name, value)]
        for key, entry in entries:
            if key not in PLACES:
                # A hook's key is a number that no other hook has.
                known = key if isinstance(key, str) else None
                found.append((name, known, entry if isinstance(entry, PLAIN) else describe(entry)))
    return found


def describe(value: Any) -> Any:
    """Describe a value of an attribute, as far as two layers can be compared by it."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.dtype, value.device, value.requires_grad)
    if isinstance(value, Mapping):
        return [(key, describe(entry)) for key, entry in value.items() if key not in PLACES]
    if isinstance(value, (list, tuple)):
        return [describe(entry) for entry in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    return getattr(value, "__qualname__", type(value))  # of a function, as one that replaces a forward


def tokens(number: int, vocabulary: int) -> torch.Tensor:
    """Spread ids over the vocabulary like multiples of the golden ratio over a circle: no two neighbours are alike."""
    places = torch.arange(1, number + 1, dtype=torch.float64) * ((math.sqrt(5) - 1) / 2)
    return (places.frac() * vocabulary).long().clamp(max=vocabulary - 1)


def first_line(error: Exception) -> str:
    """Return the kind of an error and the beginning of its message, without a full stop."""
    lines = str(error).strip().splitlines()
    line = lines[0][:160].rstrip(".") if lines else ""
    return f"{type(error).__name__}: {line}"
