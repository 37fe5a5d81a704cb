"""Is a resumed run the same run? Its keys, data, model, tokenizer and adapter, compared with the checkpoint's."""

import dataclasses
import datetime
import decimal
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch.optim.lr_scheduler import LambdaLR

from ..keys import FREE_KEYS, TRIGGER_KEYS, is_on, switched_off, switched_on
from ..supported import SCHEDULES
from ..text import short
from ..upstream.weights import settings_of
from .files import json_sha256
from .folder import RunFolder
from .log_files import read_json
from .provenance import as_plain, remove_secrets
from .starting import base_parameters, weights_hash


IDENTITY_FILE = "identity.json"
TEACHER = "weights of ref_model"
PROBE = "Compute 12 × 7.\n\nThe ANSWER is"  # tokenized, with what a tokenizer adds around a text
LENGTHS = {"max_steps", "num_train_epochs"}
ENDS = {*LENGTHS, "entropy_stop", "guard_gap_action", "stop_stall"}  # they end a run, and change no batch
EVALUATIONS_ACT = "evaluations change the training"
CHOSEN_LATER = {"metric_for_best_model", "greater_is_better"}
# A resume restores them, or they act before the first step: a new value would be ignored, or act in part.
RESTORED = {"seed", "data_seed", "optim", "optim_target_modules", "eval_on_start", *CHOSEN_LATER}
RESTORED.add("r of the adapter")  # growth takes the checkpoint's
RATES = {"learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps"}
# PEFT's settings of an adapter that are names and places.
NAMES_OF_ADAPTER = {"base_model_name_or_path", "revision", "auto_mapping", "inference_mode", "peft_version"}


def changing_keys(*configs: Any) -> dict[str, Any]:
    """Return the keys that can change a number, as JSON values."""
    keys = {}
    for config in configs:
        left_out = FREE_KEYS | LENGTHS if _is_endless(config) else FREE_KEYS
        for field in dataclasses.fields(config):
            if field.init and field.name not in left_out:
                keys[field.name] = getattr(config, field.name)
    return remove_secrets(as_plain(keys))


def _is_endless(config: Any) -> bool:
    """Return whether no learning rate depends on the run's length."""
    schedule = SCHEDULES.get(getattr(getattr(config, "lr_scheduler_type", None), "value", None))
    warmup = getattr(config, "warmup_steps", 0) or 0
    is_share = 0 < warmup < 1  # of all steps
    return schedule is not None and schedule.is_endless and not is_share


def identity_of(trainer, keys: Mapping[str, Any], policy: torch.nn.Module) -> dict[str, Any]:
    """Return what a run is, in addition to its recipe."""
    tokenizer = trainer.text_tokenizer
    ids = tokenizer(PROBE).input_ids
    sets = trainer.eval_dataset if isinstance(trainer.eval_dataset, dict) else {"": trainer.eval_dataset}
    return {
        **keys,
        **describe_adapter(policy),
        **describe_config(policy),
        "processes": trainer.accelerator.num_processes,
        "weights of the model": weights_hash(base_parameters(policy)),
        TEACHER: teacher_hash(trainer.teacher),
        "rows of the training set": rows_hash(trainer.train_dataset),
        "rows of the evaluation sets": {name: rows_hash(rows) for name, rows in sets.items()},
        "tokenizer": json_sha256([sorted(tokenizer.get_vocab().items()), tokenizer.special_tokens_map, ids]),
        "chat template": json_sha256(trainer.processing_class.chat_template),
        "reward functions": list(trainer.reward_func_names),
        "tools": [tool.__name__ for tool in trainer.tools],
    }


def describe_adapter(policy: torch.nn.Module) -> dict[str, Any]:
    config = getattr(policy, "peft_config", {}).get("default")
    settings = as_plain(config.to_dict()) if config is not None else {}
    return {f"{name} of the adapter": settings[name] for name in settings.keys() - NAMES_OF_ADAPTER}


def describe_config(policy: torch.nn.Module) -> dict[str, Any]:
    settings = as_plain(settings_of(policy.config.to_dict()))
    return {f"{name} of the model": value for name, value in settings.items()}


def find_start(
    folder: RunFolder, resume_from: str | None, identity: Mapping[str, Any], allowed: bool, content: bool = True
) -> tuple[Path | None, dict[str, list[Any]]]:
    """
    Return the checkpoint of `resume_from_checkpoint`, and `{key: [then, now]}` of what differs from it; `None`: a run
    starts at step 0. Nothing is written. Raises `ValueError`, see [`check_same_run`].
    """
    if resume_from is None:
        return None, {}
    checkpoint = folder.find(resume_from, content)
    return checkpoint, {} if checkpoint is None else check_same_run(checkpoint, identity, allowed)


def check_same_run(checkpoint: Path, identity: Mapping[str, Any], allowed: bool) -> dict[str, list[Any]]:
    """
    Return `{key: [then, now]}` of what differs from a checkpoint. Raises `ValueError`: it differs, and is not
    `allowed` (`allow_config_change`), or a new value cannot act.
    """
    saved = read_json(checkpoint / IDENTITY_FILE)
    common = sorted(saved.keys() & identity.keys())  # a script has no keys of a task
    changed = {key: [saved[key], identity[key]] for key in common if saved[key] != identity[key]}
    for key in CHOSEN_LATER & changed.keys():  # by a trainer: a run's `config.yaml` has its choice, its recipe none
        if None in changed[key]:
            del changed[key]
    fixed = changed.keys() - ENDS if buffer_file(checkpoint, 0).exists() else _without_effect(changed, identity)
    if fixed or (changed and not allowed):
        listed = "; ".join(f"{key}: {short(old)} -> {short(new)}" for key, (old, new) in changed.items())
        cure = "or set allow_config_change: true to continue with the new ones"
        if fixed:
            cure = f"or start a new run: from {checkpoint.name}, {', '.join(sorted(fixed))} cannot change"
            if buffer_file(checkpoint, 0).exists():
                cure += ", because its generation batch is half used"
        raise ValueError(
            f"resume_from_checkpoint with other arguments would change the run: {listed}. Restore the values, {cure}."
        )
    return changed


def _without_effect(changed: Mapping[str, list[Any]], identity: Mapping[str, Any]) -> set[str]:
    """Return the changed keys that a resume would ignore, or for which the checkpoint lacks a state."""
    keys = RESTORED & changed.keys()
    schedules = {*changed.get("lr_scheduler_type", ()), identity.get("lr_scheduler_type")} & SCHEDULES.keys()
    if any(SCHEDULES[name].follows_rates for name in schedules):
        keys |= RATES & changed.keys()
    if switched_on(changed, "elastic_reset_every"):  # without the moving average
        keys.add("elastic_reset_every")
    has_resets = identity.get("guard_gap_action") == "reset" or any(is_on(identity.get(key)) for key in TRIGGER_KEYS)
    if identity.get("beta") and not has_resets:  # the run has moved the reference, which would be the starting model
        keys |= {key for key in TRIGGER_KEYS if switched_off(changed, key)}
    return keys


def buffer_file(folder: Path, process: int) -> Path:
    return folder / f"buffer-{process}.pt"


def rows_hash(rows: Any) -> str | None:
    if not isinstance(rows, Dataset):
        return None
    digest = hashlib.sha256()
    for batch in rows.with_format(None).iter(1000):
        digest.update(json.dumps(batch, sort_keys=True, default=_as_text).encode())
    return digest.hexdigest()


def _as_text(value: Any) -> str:
    """Return a value of a row that JSON does not support as text, an image as its type alone."""
    is_short = isinstance(value, datetime.date | datetime.time | datetime.timedelta | decimal.Decimal | bytes)
    return str(value) if is_short else type(value).__name__


def teacher_hash(teacher: Any) -> str | None:
    """Return the hash of the model of `ref_model`; `None` without one."""
    return None if teacher is None else weights_hash(teacher.ref_model.named_parameters())


def hyperparameters(optimizer) -> list[dict[str, Any]]:
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def restore_hyperparameters(optimizer, scheduler, configured: list[dict[str, Any]]) -> None:
    """Give an optimizer and a `LambdaLR` the configured values after their states were loaded."""
    for group, values in zip(optimizer.param_groups, configured, strict=True):
        group.update({name: value for name, value in values.items() if name not in ("lr", "initial_lr")})
    inner = getattr(scheduler, "scheduler", scheduler)
    if not isinstance(inner, LambdaLR):
        return
    inner.base_lrs = [values["initial_lr"] for values in configured]
    rates = [base * factor(inner.last_epoch) for base, factor in zip(inner.base_lrs, inner.lr_lambdas, strict=True)]
    for group, rate, base in zip(optimizer.param_groups, rates, inner.base_lrs, strict=True):
        group.update(lr=rate, initial_lr=base)
    inner._last_lr = rates
