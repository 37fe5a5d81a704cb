"""The origin of a run, without secrets: `config.yaml`, a recipe to repeat it, and `env.json`."""

import dataclasses
import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ..cli.environment import git_commit, hardware, versions
from ..embedded import shipped as embedded_base
from ..supported import default_of
from ..tasks.plugin import split_reference
from ..text import code_span, shell_quote, shell_words
from .files import replace_text
from .log_files import CONFIG_FILE, ENV_FILE, RECORDED, RUN_ID, STARTING_WEIGHTS, weight_files


if TYPE_CHECKING:
    import torch

    from .starting import Start


# Keys of TRL that are always in `config.yaml`.
ALWAYS = ("beta", "temperature", "seed", "max_completion_length")


def as_plain(value: Any) -> Any:
    """Convert NumPy's values to Python's, sets to sorted lists, other objects to `None`."""

    def convert(item: Any) -> Any:
        if isinstance(item, set):
            return sorted(item)
        return item.tolist() if hasattr(item, "tolist") else None

    return json.loads(json.dumps(value, default=convert, skipkeys=True))


def write_config(run_dir: str | os.PathLike, args: Any, recipe: tuple = ()) -> None:
    """
    Write all our keys, and TRL's with other values than their defaults. `recipe`: further dataclasses, such as task
    and model.
    """
    from trl import GRPOConfig  # deferred: a report does not need it

    keys = {}
    for part in (args, *recipe):
        keys.update({field.name: getattr(part, field.name) for field in dataclasses.fields(part) if field.init})
    for field in dataclasses.fields(GRPOConfig):
        if field.name not in ALWAYS and keys.get(field.name) == default_of(field):
            keys.pop(field.name, None)
    keys = {key: value for key, value in remove_secrets(as_plain(keys)).items() if value is not None}
    if "steps_per_generation" in keys:
        keys.pop("generation_batch_size", None)  # TRL derives it, and rejects both
    path = Path(run_dir) / CONFIG_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, yaml.safe_dump(keys, sort_keys=True))


def write_env(
    run_dir: str | os.PathLike,
    args: Any,
    model: "torch.nn.Module",
    execution: Mapping[str, Any] | None,
    base: str | None = None,
    run_id: str | None = None,
    start: "Start | None" = None,
    teacher: Mapping[str, Any] | None = None,
) -> None:
    """
    Write `env.json`. `execution` describes accelerations, `None` a run of TRL's own trainer; `base` is the starting
    model, `teacher` what is known of the model of `ref_model` in addition to its name.
    """
    base_model = identify(base, args.model_init_kwargs) if base else None
    if base_model is not None and start is not None:
        base_model = dataclasses.replace(base_model, commit=start.commit)
    env = {
        RUN_ID: run_id,
        "variant": RECORDED if execution is None else args.variant,
        "base_model": dataclasses.asdict(base_model) if base_model else None,
        STARTING_WEIGHTS: start.weights if start else None,
        "ref_model": None if teacher is None else dataclasses.asdict(identify(args.ref_model)) | teacher,
        "quantization": _quantization(model),
        "seed": args.seed,
        "versions": {"python": platform.python_version(), **versions()},
        "git_commit": git_commit(),
        "command": spell_command(sys.orig_argv),
        "hardware": hardware(args.device),
        "parameters": sum(p.numel() for p in model.parameters()),
        "trainable_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
    }
    if execution is not None:
        old_logps = args.old_logps_source
        if args.reuse_obstacle:
            old_logps += f": {args.reuse_obstacle}"
        env["execution"] = {
            "old_logps": old_logps,
            "ref_compute": args.ref_compute if args.beta != 0.0 else "none",
            "loss": "trl + added penalty" if args.adds_penalty else "trl",
            "zero_rows": "skipped" if args.skips_zero_rows else "computed",
            **execution,
        }
    replace_text(Path(run_dir, ENV_FILE), json.dumps(env, indent=2) + "\n")


def _quantization(model: "torch.nn.Module") -> dict | None:
    """Return how a model's weights were quantised, as transformers writes it into a `config.json`."""
    config = getattr(getattr(model, "config", None), "quantization_config", None)
    return as_plain(config.to_dict() if hasattr(config, "to_dict") else config)


# A download in the Hub's cache: a local folder, but a Hub model.
SNAPSHOT = re.compile(r"models--(?P<repo>[^/\\]+)[/\\]snapshots[/\\](?P<commit>[0-9a-f]+)[/\\]?$")


@dataclass(frozen=True)
class BaseModel:
    """
    A starting model: `name` as given (embedded: `embedded:TASK:SEED`), `hub_id` and `commit` on the Hub, and a local
    folder's `sha256` from [`fingerprint`].
    """

    name: str
    hub_id: str | None = None
    commit: str | None = None
    sha256: str | None = None


def identify(name: str, init: Mapping[str, Any] | None = None) -> BaseModel:
    """Return what a name stands for, with the `revision` and the `subfolder` of `model_init_kwargs`."""
    embedded = embedded_base.full_name(name)
    if embedded:
        return BaseModel(embedded, sha256=embedded_base.weights_sha256(embedded))
    snapshot = SNAPSHOT.search(name)
    if snapshot:
        return BaseModel(name, snapshot["repo"].replace("--", "/"), snapshot["commit"])
    if Path(name).is_dir() or not is_hub_name(name):
        return BaseModel(name, sha256=fingerprint(folder_of_weights(name, init)))
    return BaseModel(name, name, hub_commit(name, init))


def folder_of_weights(name: str, init: Mapping[str, Any] | None) -> Path:
    return Path(name, (init or {}).get("subfolder") or "")


def fingerprint(name: str | os.PathLike) -> str | None:
    """Return the SHA-256 of the weights in a local folder, two seconds per GB."""
    files = weight_files(name)
    digest = hashlib.sha256()
    for path in files:
        with open(path, "rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest() if files else None


def hub_commit(name: str, init: Mapping[str, Any] | None = None) -> str | None:
    """Return the commit that the Hub's cache has for a revision."""
    folder = cached_folder(name, init)
    return None if folder is None else commit_of(folder)


def commit_of(folder: Path) -> str:
    """Return the commit of a folder in the Hub's cache: `…/snapshots/COMMIT`, or one in it."""
    parts = folder.parts
    return parts[len(parts) - parts[::-1].index("snapshots")]


def cached_folder(name: str, init: Mapping[str, Any] | None = None) -> Path | None:
    """Return the folder of a Hub model's `config.json` in the Hub's cache."""
    if Path(name).is_dir() or not is_hub_name(name):
        return None
    from huggingface_hub import try_to_load_from_cache  # deferred: a report does not need it

    init = init or {}
    file = Path(init.get("subfolder") or "", "config.json").as_posix()
    config = try_to_load_from_cache(name, file, init.get("cache_dir"), init.get("revision") or "main")
    return Path(config).parent if isinstance(config, str) else None


def is_hub_name(name: str) -> bool:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


# Keys and values of recipes and command lines that log files and cards must not contain.
SECRET_KEY = r"(?!(?:eos|pad|bos|unk|sep|cls|mask)_)\w*(?:token|password|secret|api_key)"
SECRET_VALUES = re.compile(r"\bhf_[A-Za-z0-9]{20,}")
# Of a command whose words a NUL separates: an option, or a key of a mapping, and its value.
SECRET_OPTIONS = re.compile(
    rf"""\b({SECRET_KEY}\b["']?(?:\0(?!--)|\s*[=:]\s*))"""
    r"""("[^"]*"|'[^']*'|[^\0,}]+)"""
)


def remove_secrets(config: Any) -> Any:
    """Remove tokens and passwords, at any depth."""
    if isinstance(config, str):
        return SECRET_VALUES.sub("[removed]", config)
    if isinstance(config, list):
        return [remove_secrets(value) for value in config]
    if not isinstance(config, dict):
        return config
    return {key: remove_secrets(value) for key, value in config.items() if not re.fullmatch(SECRET_KEY, str(key))}


def spell_command(words: list[str]) -> str:
    """Format a process's command without secrets."""
    python, *rest = words
    if rest and Path(rest[0]).name == "trl-prorl":
        python, *rest = rest
    joined = remove_secrets("\0".join([Path(python).name, *rest]))
    shown = SECRET_OPTIONS.sub(r"\1[removed]", joined).split("\0")
    return " ".join(map(shell_quote, shown))


def plugin_options(env: dict[str, Any], config: dict[str, Any] | None = None) -> str:
    """Return the options that name a run's code: what its command passed as `--plugin`, and what its keys name."""
    config = config or {}
    files = []
    for before, word in pairwise(["", *shell_words(env.get("command") or "")]):
        if before == "--plugin":
            files.append(word)
        elif word.startswith("--plugin="):
            files.append(word.removeprefix("--plugin="))
    for name in [*(config.get("reward") or []), config.get("verify")]:
        if name is not None:
            files.append(split_reference(name, "reward")[0])
    return "".join(f" --plugin {shell_quote(file)}" for file in dict.fromkeys(files))


def passk_command(config: dict[str, Any], env: dict[str, Any], *run_dirs: Any) -> str:
    """Return the command that evaluates such runs. A script's needs a file with its rows and verifier."""
    plugins = plugin_options(env, config)
    if not plugins and not config.get("task"):
        plugins = " --plugin FILE.py"
    return f"trl-prorl passk{plugins} " + " ".join(f"--run {shell_quote(str(run_dir))}" for run_dir in run_dirs)


def describe_evaluation(config: dict[str, Any], env: dict[str, Any], run_dir: Any) -> str:
    command = code_span(passk_command(config, env, run_dir))
    if config.get("task"):
        return command
    return f"`evaluate(trainer, rows, verifier)` at the end of the script or {command}"
