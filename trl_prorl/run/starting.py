"""Which weights a run starts from: a name, or a commit that was asked for, need not be the model in memory."""

import copy
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from .files import json_sha256
from .provenance import SNAPSHOT, cached_folder, commit_of


VALUES_HASHED = 128  # of a tensor
WRAPPERS = {"base_layer", "original_module", "token_adapter"}  # PEFT's names around a module
COMPARED = (torch.float32, torch.bfloat16)  # evaluations load these two, whichever the run had


@dataclass(frozen=True)
class Start:
    """
    The start of a run: its `weights` from [`starting_weights`], and the Hub's `commit` if the model has its weights.
    """

    weights: dict[str, str] | None = None
    commit: str | None = None


def note_start(policy: torch.nn.Module, init: Mapping[str, Any] | None) -> Start:
    """Return the start of a run with this `model_init_kwargs`. Its adapters name the commit when they are saved."""
    name = getattr(getattr(policy, "config", None), "_name_or_path", None) or ""
    folder = Path(name) if SNAPSHOT.search(name) else cached_folder(name, init)
    commit = None
    if folder is not None and has_weights(policy, folder):
        commit = commit_of(folder)
        configs = getattr(policy, "peft_config", {})
        for adapter, config in configs.items():  # copies: a script may use its configuration for another model
            configs[adapter] = copy.copy(config)
            configs[adapter].revision = commit
    return Start(starting_weights(policy), commit)


def starting_weights(policy: torch.nn.Module) -> dict[str, str] | None:
    """
    Hash names and shapes of the weights under the adapters, and some evenly spaced values of each as bfloat16. `None`:
    they are quantized, in float16, or not in memory.
    """
    params = dict(sorted(named_weights(policy).items()))
    if not all(param.dtype in COMPARED and not param.is_meta for param in params.values()):
        return None
    values = hashlib.sha256()
    for param in params.values():
        values.update(spaced_values(param).float().numpy().tobytes())
    shapes = {name: list(param.shape) for name, param in params.items()}
    return {"tensors": json_sha256(shapes), "values": values.hexdigest()}


def has_weights(policy: torch.nn.Module, folder: Path) -> bool:
    """Return whether no weight under the adapters differs from that of the same name and shape in a folder's files."""
    params = named_weights(policy)
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as saved:  # memory-mapped: the values are read, not the tensors
            for name in params.keys() & saved.keys():
                param = params[name]
                tensor = saved.get_tensor(name)
                is_compared = param.dtype in COMPARED and not param.is_meta and tensor.shape == param.shape
                if is_compared and not torch.equal(spaced_values(param), spaced_values(tensor)):
                    return False
    return True


def named_weights(policy: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights under the adapters, by their names without adapters."""
    named = {}
    for name, param in base_parameters(policy):
        parts = name.removeprefix("base_model.model.").split(".")
        named[".".join(part for part in parts if part not in WRAPPERS)] = param
    return named


def spaced_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return some evenly spaced values as bfloat16: a model loaded in float32 and one in bfloat16 have the same."""
    flat = tensor.detach().flatten()
    return flat[:: len(flat) // VALUES_HASHED + 1].to("cpu", torch.bfloat16)


def base_parameters(policy: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    adapters = set(getattr(policy, "peft_config", {}))
    return [(name, param) for name, param in policy.named_parameters() if adapters.isdisjoint(name.split("."))]


@torch.no_grad()
def weights_hash(named_tensors: Iterable[tuple[str, torch.Tensor]], whole: bool = False) -> str:
    """Hash the name, dtype, shape and some evenly spaced values of every tensor."""
    digest = hashlib.sha256()
    for name, tensor in named_tensors:
        flat = tensor.detach().flatten()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        shown = flat if whole else flat[:: len(flat) // VALUES_HASHED + 1]
        digest.update(shown.to("cpu", torch.float64).numpy().tobytes())
    return digest.hexdigest()
