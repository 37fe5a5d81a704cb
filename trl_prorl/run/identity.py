"""Is a resumed run the same run? Its keys, data, model, tokenizer and adapter, compared with the checkpoint's."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch.optim.lr_scheduler import LambdaLR

from ..keys import FREE_KEYS
from ..text import short
from .files import json_sha256
from .log_files import read_json
from .provenance import as_plain, remove_secrets


IDENTITY_FILE = "identity.json"
VALUES_HASHED = 128  # of a tensor
LENGTHS = ("max_steps", "num_train_epochs")
CHOSEN_LATER = {"metric_for_best_model", "greater_is_better"}
ENDLESS = ("constant",)  # schedules whose rate does not depend on the run's length
# Division of a generation batch into micro-batches and steps.
BATCH_KEYS = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "steps_per_generation",
    "generation_batch_size",
    "num_generations",
    "num_iterations",
    "processes",
)


def changing_keys(*configs: Any) -> dict[str, Any]:
    """Return the keys that can change a number, as JSON values."""
    keys = {}
    for config in configs:
        schedule = getattr(getattr(config, "lr_scheduler_type", None), "value", None)
        left_out = {*FREE_KEYS, *(LENGTHS if schedule in ENDLESS else ())}
        for field in dataclasses.fields(config):
            if field.init and field.name not in left_out:
                keys[field.name] = getattr(config, field.name)
    return remove_secrets(as_plain(keys))


def identity_of(trainer, keys: Mapping[str, Any], policy: torch.nn.Module) -> dict[str, Any]:
    """Return what a run is, in addition to its recipe."""
    tokenizer = trainer.text_tokenizer
    sets = trainer.eval_dataset if isinstance(trainer.eval_dataset, dict) else {"": trainer.eval_dataset}
    adapters = {name: as_plain(config.to_dict()) for name, config in getattr(policy, "peft_config", {}).items()}
    return {
        **keys,
        "processes": trainer.accelerator.num_processes,
        "weights of the model": weights_hash(base_parameters(policy)),
        "adapter": adapters.get("default"),
        "rows of the training set": rows_hash(trainer.train_dataset),
        "rows of the evaluation sets": {name: rows_hash(rows) for name, rows in sets.items()},
        "tokenizer": json_sha256([sorted(tokenizer.get_vocab().items()), tokenizer.special_tokens_map]),
        "chat template": json_sha256(trainer.processing_class.chat_template),
        "reward functions": list(trainer.reward_func_names),
    }


def check_same_run(checkpoint: Path, now: Mapping[str, Any], allowed: bool) -> dict[str, list[Any]]:
    """
    Return `{key: [then, now]}` of what differs from a checkpoint. Raises `ValueError`: it differs, and is not
    `allowed` (`allow_config_change`), or divides a half-used batch otherwise.
    """
    then = read_json(checkpoint / IDENTITY_FILE)
    changed = {key: [then[key], now[key]] for key in then.keys() & now.keys() if then[key] != now[key]}
    for key in CHOSEN_LATER & changed.keys():  # by a trainer: a run's `config.yaml` has its choice, its recipe none
        if None in changed[key]:
            del changed[key]
    half = [key for key in BATCH_KEYS if key in changed and buffer_file(checkpoint, 0).exists()]
    if half or (changed and not allowed):
        listed = "; ".join(f"{key}: {short(old)} -> {short(new)}" for key, (old, new) in sorted(changed.items()))
        cure = "its generation batch is half used" if half else "set allow_config_change: true to go on with these"
        raise ValueError(f"resume_from_checkpoint with other arguments would change the run: {listed}. Restore, or {cure}.")
    return changed


def buffer_file(folder: Path, process: int) -> Path:
    return folder / f"buffer-{process}.safetensors"


def rows_hash(rows: Any) -> str | None:
    if not isinstance(rows, Dataset):
        return None
    digest = hashlib.sha256()
    for batch in rows.with_format(None).iter(1000):
        digest.update(json.dumps(batch, sort_keys=True, default=lambda value: type(value).__name__).encode())
    return digest.hexdigest()


def base_parameters(policy: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    others = set(getattr(policy, "peft_config", {}))
    return [(name, param) for name, param in policy.named_parameters() if others.isdisjoint(name.split("."))]


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


def hyperparameters(optimizer) -> list[dict[str, Any]]:
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def restore_hyperparameters(optimizer, scheduler, made_with: list[dict[str, Any]]) -> None:
    """Give an optimizer and a `LambdaLR` the configured values after their states were loaded."""
    for group, values in zip(optimizer.param_groups, made_with, strict=True):
        group.update({name: value for name, value in values.items() if name not in ("lr", "initial_lr")})
    inner = getattr(scheduler, "scheduler", scheduler)
    if not isinstance(inner, LambdaLR):
        return
    inner.base_lrs = [values["initial_lr"] for values in made_with]
    inner._last_lr = [base * rate(inner.last_epoch) for base, rate in zip(inner.base_lrs, inner.lr_lambdas, strict=True)]
    for group, rate, base in zip(optimizer.param_groups, inner._last_lr, inner.base_lrs, strict=True):
        group.update(lr=rate, initial_lr=base)
