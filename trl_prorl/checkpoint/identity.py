"""
What makes a resumed run the same run: every argument that can change a number, the data, and the model it began from.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from datasets import Dataset

from ..keys import FREE_KEYS
from ..record.folder import as_plain


IDENTITY_FILE = "identity.json"

# With these the rates of the past do not depend on the length of the run.
ENDLESS_SCHEDULES = ("constant", "constant_with_warmup")
LENGTHS = frozenset(["max_steps", "num_train_epochs"])
ROWS_HASHED = 20_000


def changing_keys(*configs: Any) -> dict[str, Any]:
    """
    The arguments on which the numbers of a run depend, as JSON values.

    Args:
        configs (dataclass instances): The trainer's configuration, and what else a recipe holds.
    """
    keys = {}
    for config in configs:
        left_out = FREE_KEYS
        if str(getattr(getattr(config, "lr_scheduler_type", None), "value", "")) in ENDLESS_SCHEDULES:
            left_out = FREE_KEYS | LENGTHS
        for field in dataclasses.fields(config):
            if field.init and field.name not in left_out:
                keys[field.name] = as_plain(getattr(config, field.name, None))
    return json.loads(json.dumps(keys))


def dataset_hash(dataset: Any) -> str | None:
    """Hash of a dataset's content, of evenly spaced rows if it is large; `None` if it cannot be indexed."""
    if not isinstance(dataset, Dataset):
        return None
    digest = hashlib.sha256(str(len(dataset)).encode())
    rows = dataset.select(range(0, len(dataset), max(1, len(dataset) // ROWS_HASHED)))
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, default=lambda value: type(value).__name__).encode())
    return digest.hexdigest()


@torch.no_grad()
def weights_hash(named_tensors: Iterable[tuple[str, torch.Tensor]], sample: int = 64) -> str:
    """
    Hash of names, shapes and a few values of every tensor: enough to tell one model from another, at no cost.

    Args:
        named_tensors (`Iterable[tuple[str, torch.Tensor]]`): Parameters by name.
        sample (`int`, *optional*, defaults to `64`): Values that are read at each end of a tensor.
    """
    digest = hashlib.sha256()
    for name, tensor in named_tensors:
        flat = tensor.detach().flatten()
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        for part in (flat[:sample], flat[-sample:]):
            digest.update(part.to("cpu", torch.float64).numpy().tobytes())
    return digest.hexdigest()


def base_parameters(policy: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The parameters that a policy took over from its model: without adapters."""
    others = set(getattr(policy, "peft_config", {}))
    return [(name, param) for name, param in policy.named_parameters() if others.isdisjoint(name.split("."))]


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[Any]]:
    """
    `{key: [then, now]}` for every key of both that differs. A key that only one of them knows is not a difference:
    another version of the project may have written it. Neither are on and auto, which is on wherever that is possible.
    """
    pairs = {key: [then[key], now[key]] for key in sorted(then) if key in now}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1] and set(map(str, pair)) != {"on", "auto"}}


def check_same_run(then: Mapping[str, Any], now: Mapping[str, Any], allowed: bool) -> dict[str, list[Any]]:
    """
    Refuse a resume that would change the run.

    Args:
        then (`Mapping`), now (`Mapping`): What a checkpoint says, and what is asked now.
        allowed (`bool`): `allow_config_change`.

    Returns:
        `dict[str, list]`: the differences, `{key: [then, now]}`.

    Raises:
        `ValueError`: there are differences, and they are not allowed.
    """
    changed = differences(then, now)
    if changed and not allowed:
        listed = "; ".join(f"{key}: {_short(old)} -> {_short(new)}" for key, (old, new) in changed.items())
        raise ValueError(
            f"resume_from_checkpoint with other arguments would change the run: {listed}. Restore them, or set "
            "allow_config_change: true, which logs the change as an event."
        )
    return changed


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
