"""The record of a run beside its metrics: `config.yaml`, which starts a run from a recipe again, and `env.json`."""

import dataclasses
import json
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from trl import GRPOConfig

from ..environment import git_commit, hardware, versions
from .base_model import fingerprint, hub_commit, identify
from .run_files import CONFIG_FILE, ENV_FILE
from .run_id import RUN_ID
from .started import command_of


SECRETS = frozenset(["hub_token", "push_to_hub_token"])


def set_keys(config: Any, always: frozenset[str] = frozenset()) -> dict[str, Any]:
    """
    The fields of a dataclass instance that differ from their defaults, as plain YAML values.

    Args:
        config (dataclass instance): The configuration.
        always (`frozenset[str]`, *optional*): Fields to include whatever their value, unless it is `None`.
    """
    keys = {}
    for field in dataclasses.fields(config):
        if not field.init:
            continue
        default = field.default if field.default is not dataclasses.MISSING else None
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        value = getattr(config, field.name)
        if (value != default or field.name in always) and (plain := as_plain(value)) is not None:
            keys[field.name] = plain
    return keys


def field_names(config: Any) -> frozenset[str]:
    return frozenset(field.name for field in dataclasses.fields(config))


def as_plain(value: Any) -> Any:
    """A value that YAML can hold, or `None` for objects that a recipe cannot spell."""
    if isinstance(value, str):
        return str(getattr(value, "value", value))
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [as_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): as_plain(item) for key, item in value.items()}
    return None


def write_config(run_dir: str | os.PathLike, args: GRPOConfig, recipe: tuple = ()) -> None:
    """
    Write `config.yaml`, a recipe of this run: all keys of our own, and TRL's where they differ from their defaults.
    Tokens are left out.

    Args:
        run_dir (`str` or `os.PathLike`): The run folder.
        args ([`ProRLConfig`]): The trainer's configuration.
        recipe (`tuple` of dataclass instances, *optional*): What the trainer does not see: the task, the model.
    """
    ours = field_names(args) - field_names(GRPOConfig)
    keys = set_keys(args, always=ours | {"beta", "temperature", "seed", "max_completion_length"})
    for part in recipe:
        keys |= set_keys(part, always=field_names(part))
    for secret in SECRETS:
        keys.pop(secret, None)
    if "steps_per_generation" in keys:
        keys.pop("generation_batch_size", None)  # TRL derives it, and refuses to be given both
    path = Path(run_dir) / CONFIG_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(keys, sort_keys=True))


def write_env(
    run_dir: str | os.PathLike,
    args: Any,
    model: torch.nn.Module,
    packing: str = "off",
    generation: Mapping[str, Any] | None = None,
    base: str | None = None,
    run_id: str | None = None,
) -> None:
    """
    Write `env.json`: versions, git commit, seeds, hardware, the variant, and how the run is computed.

    Args:
        run_dir (`str` or `os.PathLike`): The run folder.
        args ([`ProRLConfig`]): The configuration.
        model (`torch.nn.Module`): The policy.
        packing (`str`, *optional*, defaults to `"off"`): Whether groups are packed, and if not as asked, why.
        generation (`Mapping[str, Any]`, *optional*): How rollouts are sampled.
        base (`str`, *optional*): Hub name or folder of the model that the run began from.
        run_id (`str`, *optional*): The run's id, which is also saved beside its weights.
    """
    revision = (getattr(args, "model_init_kwargs", None) or {}).get("revision")
    env = {
        RUN_ID: run_id,
        "variant": args.variant,
        "base_model": dataclasses.asdict(identify(base)) if base else None,
        # The same name may come to mean other weights: a folder's content changes, and so does the Hub's commit.
        "base_weights": fingerprint(base) if base else None,
        "base_commit": None if not base or Path(base).is_dir() else hub_commit(base, revision),
        "execution": {
            "old_logps": args.old_logps_source + (f": {args.why_no_reuse}" if args.why_no_reuse else ""),
            "ref_compute": args.ref_compute if args.beta != 0.0 else "none",
            "loss": "trl + added penalty" if args.adds_penalty else "trl",
            "packing": packing,
            **(generation or {}),
        },
        "seed": args.seed,
        "data_seed": args.data_seed,
        "versions": {"python": platform.python_version(), **versions()},
        "git_commit": git_commit(),
        "command": command_of(sys.orig_argv),
        "hardware": hardware(args.device),
        "parameters": sum(p.numel() for p in model.parameters()),
        "trainable_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
    }
    Path(run_dir, ENV_FILE).write_text(json.dumps(env, indent=2) + "\n")
