"""
What a checkpoint contains in addition to TRL's: samples that are still to be trained on, TRL's metrics since its last
log, the state of a run's parts, and the parameters that stay in place when PEFT loads its adapters.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from trl.trainer.utils import strip_images_from_messages


STATE_FILE = "prorl_state.json"


def save_buffer(path: Path, batches: list[Mapping[str, Any]]) -> None:
    """Write micro-batches, each a mapping of tensors and of values that JSON can hold."""
    tensors = {}
    values = []
    for number, batch in enumerate(batches):
        others = {}
        for name, value in batch.items():
            if isinstance(value, torch.Tensor):
                # Micro-batches are slices of one tensor, and safetensors refuses tensors that share memory.
                tensors[f"{number}.{name}"] = value.detach().clone().contiguous()
            else:
                others[name] = value
        values.append(others)
    save_file(tensors, path, metadata={"values": json.dumps(values)})


def load_buffer(path: Path, device: torch.device) -> list[dict[str, Any]]:
    """Read what [`save_buffer`] wrote."""
    # Read on the CPU, as one of several processes there has the device "cpu:0", which safetensors does not know.
    with safe_open(path, framework="pt") as file:
        batches = json.loads(file.metadata()["values"])
        for key in file.keys():
            number, name = key.split(".", 1)
            batches[int(number)][name] = file.get_tensor(key).to(device)
    return batches


def log_to_json(metrics: Mapping[str, list[float]], completions: Mapping[str, Any] | None) -> dict[str, Any]:
    """
    Convert what TRL has gathered for its next log to JSON values.

    Args:
        metrics (`Mapping[str, list[float]]`): TRL's metrics of training since its last log.
        completions (`Mapping[str, Any]`, *optional*): TRL's table of completions, which it writes with every log.
    """
    state: dict[str, Any] = {"metrics": dict(metrics), "completions": None}
    if completions is not None:
        table = {name: list(map(strip_images_from_messages, completions[name])) for name in ("prompt", "completion")}
        table["advantages"] = list(completions["advantages"])
        for name in ("rewards", "extra"):
            table[name] = {column: list(values) for column, values in completions[name].items()}
        state["completions"] = table
    return state


def restore_log(state: Mapping[str, Any], metrics: dict[str, list[float]], completions: Mapping[str, Any]) -> None:
    """Put the values that [`log_to_json`] returned into TRL's metrics and its table."""
    metrics.update(state["metrics"])
    for name, values in (state["completions"] or {}).items():
        if isinstance(values, dict):
            for column, column_values in values.items():
                completions[name][column].extend(column_values)
        else:
            completions[name].extend(values)


@contextmanager
def keep_parameters(model: torch.nn.Module) -> Iterator[None]:
    """
    Keep a model's parameters while PEFT loads adapters into it; afterwards they have the values that were loaded.

    PEFT 0.21 replaces the parameters of an adapter in bf16 or fp16 by new ones in fp32 when it loads one. TRL keeps
    the adapter of a quantised model in bf16, so that a resumed run would train other numbers than the run that it
    continues, and parts that hold its parameters would hold those that are no longer trained.
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


def write_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Write the trainer's state beyond weights and optimizer."""
    (folder / STATE_FILE).write_text(json.dumps(state, default=_as_json))


def read_state(folder: Path) -> dict[str, Any]:
    """Read what [`write_state`] wrote."""
    return json.loads((folder / STATE_FILE).read_text(), object_hook=_from_json)


def _as_json(value):
    """
    Convert values that JSON does not know, which `log_extra` may hold: NumPy's keep their type, so that a table prints
    them as before.
    """
    if isinstance(value, (np.generic, np.ndarray)):
        return {"numpy": value.dtype.str, "value": value.tolist()}
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    return str(value)


def _from_json(value: dict):
    if value.keys() == {"numpy", "value"}:
        return np.array(value["value"], value["numpy"])[()]
    return value
