"""
LoRA initialisations that change the model: PiSSA, OLoRA, CorDA and LoRA-GA begin with an adapter that is not zero, and
take its product from the model's weights; LoftQ and KaSA replace those weights.

Such an initialisation may run only once. The adapter that it leaves belongs to the changed weights, which no file
holds. It is therefore saved as an ordinary adapter for the model as it was: with W = W' + s·B₀A₀ and the policy W' +
s·BA, the change is

    s·(BA − B₀A₀) = s·[B | −B₀] [A ; A₀],

an adapter of twice the rank (as PEFT's `path_initial_model_for_weight_conversion` makes it), from which a resume takes
both.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import load_file, save_file


CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
TAKES_FROM_THE_MODEL = ("pissa", "olora", "corda", "lora_ga")
# With these an adapter is not s·BA, so that two of them do not add up to one of twice the rank.
OTHER_PRODUCTS = (
    "use_qalora alora_invocation_tokens velora_config use_bdlora monteclora_config arrow_config kasa_config".split()
)

Factors = Mapping[str, torch.Tensor]


def _asked(config: Any) -> str:
    return str(getattr(config, "init_lora_weights", None)).lower()


def changes_model(config: Any) -> bool:
    """Whether an adapter of this [`~peft.PeftConfig`] changes the weights of the model that it is added to."""
    return _asked(config).startswith((*TAKES_FROM_THE_MODEL, "loftq")) or bool(getattr(config, "kasa_config", None))


def is_convertible(config: Any) -> bool:
    """Whether a trained adapter of this [`~peft.PeftConfig`] can be written as one for the unchanged model."""
    plain = not any(getattr(config, name, None) for name in OTHER_PRODUCTS)
    return plain and _asked(config).startswith(TAKES_FROM_THE_MODEL)


def reloads_by_itself(config: Any) -> bool:
    """Whether PEFT changes the model in the same way when it loads the adapter: not by random numbers or data."""
    return not _asked(config).startswith(("pissa_niter", "corda", "lora_ga"))


@contextmanager
def without_initialisation(model: Any) -> Iterator[None]:
    """
    While it lasts, an adapter with `default`'s configuration is added to a [`~peft.PeftModel`] without reading or
    changing the model: its values come from another adapter.
    """
    config = model.peft_config.get("default") if isinstance(model, PeftModel) else None
    if not isinstance(getattr(config, "init_lora_weights", None), str) and not getattr(config, "kasa_config", None):
        yield
        return
    asked = config.init_lora_weights
    kept = []
    if getattr(config, "kasa_config", None):  # KaSA has a parameter of its own, and must not be left out
        layers = [module.get_base_layer() for module in model.modules() if isinstance(module, BaseTunerLayer)]
        kept = [(layer, layer.weight.detach().clone()) for layer in layers]
    config.init_lora_weights = asked if asked is False else True
    try:
        yield
    finally:
        config.init_lora_weights = asked
        for layer, weight in kept:
            layer.weight.data = weight


def factors_of(model: PeftModel) -> dict[str, torch.Tensor]:
    """Copies of the factors A and B of the adapter `default`, by their names in a file."""
    tensors = get_peft_model_state_dict(model, adapter_name="default", save_embedding_layers=False)
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items() if _side(name)}


def _side(name: str) -> str | None:
    """`"A"` or `"B"` for a factor's name in a file, `None` for other tensors."""
    return next((side for side in "AB" if {f"lora_{side}", f"lora_embedding_{side}"} & set(name.split("."))), None)


def doubled(tensors: Factors, initial: Factors) -> dict[str, torch.Tensor]:
    """
    The adapter for the unchanged model.

    Args:
        tensors (`Mapping[str, torch.Tensor]`):
            An adapter as in a file. Factors A of shape `(r, in)`, B of shape `(out, r)`; others stay as they are.
        initial (`Mapping[str, torch.Tensor]`):
            The factors A₀ and B₀, by the same names.

    Returns:
        `dict[str, torch.Tensor]`: factors of shapes `(2r, in)` and `(out, 2r)`.
    """
    result = dict(tensors)
    for name, tensor in tensors.items():
        if side := _side(name):
            begun = initial[name].to(tensor)
            result[name] = torch.cat([tensor, begun]) if side == "A" else torch.cat([tensor, -begun], dim=1)
    return result


def halved(tensors: Factors) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The arguments of [`doubled`], from its result."""
    result, initial = dict(tensors), {}
    for name, tensor in tensors.items():
        if side := _side(name):
            first, second = tensor.chunk(2, dim=0 if side == "A" else 1)
            result[name], initial[name] = first.contiguous(), second if side == "A" else -second
    return result, initial


def doubled_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """`adapter_config.json` of the adapter for the unchanged model: twice the rank, the same factor s."""
    growth = math.sqrt(2) if config.get("use_rslora") else 2  # of α: s is α/√r or α/r

    def times(values, factor):
        return {name: value * factor for name, value in values.items()} if values else values

    return {
        **config,
        "init_lora_weights": True,
        "r": 2 * config["r"],
        "lora_alpha": config["lora_alpha"] * growth,
        "rank_pattern": times(config.get("rank_pattern"), 2),
        "alpha_pattern": times(config.get("alpha_pattern"), growth),
        "corda_config": None,
        "lora_ga_config": None,
    }


def convert_files(folder: Path, initial: Factors) -> None:
    """Replace an adapter's files by those of the adapter for the unchanged model."""
    config = doubled_config(json.loads((folder / CONFIG_FILE).read_text()))
    tensors = doubled(load_file(folder / WEIGHTS_FILE), initial)
    new = folder / f"{WEIGHTS_FILE}.new"
    save_file(tensors, new, metadata={"format": "pt"})  # beside it: the tensors may still be read from the old one
    os.replace(new, folder / WEIGHTS_FILE)
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2, sort_keys=True))


def restore_files(folder: Path, to: Path) -> dict[str, torch.Tensor] | None:
    """
    Write the adapter that [`convert_files`] was given into another folder.

    Returns:
        `dict[str, torch.Tensor]` or `None`: its initial factors; `None` for one that was not converted, and is copied.
    """
    to.mkdir(exist_ok=True)
    config = json.loads((folder / CONFIG_FILE).read_text())
    tensors, initial = load_file(folder / WEIGHTS_FILE), None
    if config["init_lora_weights"] is True:
        tensors, initial = halved(tensors)
    save_file(tensors, to / WEIGHTS_FILE, metadata={"format": "pt"})
    (to / CONFIG_FILE).write_text(json.dumps(config))
    return initial


@torch.no_grad()
def take_from_model(model: PeftModel, then: Factors, now: Factors) -> None:
    """
    Make the model the one that an initialisation with the factors `then` left behind, where `now` were taken from it:
    equal to the last bit if they are equal, else (singular vectors of another machine, other data) equal to rounding.

    Raises:
        `ValueError`: they differ, and the model's weights are quantised.
    """
    for name, module in model.named_modules():
        a, b = (f"{name}.lora_{side}.weight" for side in "AB")
        if a not in then or (torch.equal(then[a], now[a]) and torch.equal(then[b], now[b])):
            continue
        weight = module.get_base_layer().weight
        if not weight.is_floating_point():
            raise ValueError(
                f"the initialisation of the adapter gave other values than in the checkpoint ({name}), and the "
                "model's weights are quantised, so that they cannot be corrected. Resume on the machine that began "
                "the run."
            )
        change = module.scaling["default"] * (now[b].float() @ now[a].float() - then[b].float() @ then[a].float())
        change = (change.T if getattr(module, "fan_in_fan_out", False) else change).to(weight.device)
        weight.copy_(weight.float() + change)
