"""How a run was started, for its record: the command without secrets; and what evaluates that run."""

import re
import shlex
from pathlib import Path
from typing import Any

import yaml

from .run_files import EVALUATION_KEYS


# Keys and values that a recipe or a command line may hold and a record or a card may not.
SECRET_KEYS = re.compile(r"(^|_)(hub_token|auth_token|token|password|secret|api_key)$")
NO_SECRETS = frozenset(["eos_token", "pad_token", "bos_token", "unk_token", "sep_token", "cls_token", "mask_token"])
SECRET_VALUES = re.compile(r"\bhf_[A-Za-z0-9]{20,}")


def _is_secret(key: Any) -> bool:
    return str(key) not in NO_SECRETS and SECRET_KEYS.search(str(key)) is not None


def without_secrets(config: Any) -> Any:
    """A recipe without its tokens and passwords, at any depth."""
    if isinstance(config, dict):
        return {key: without_secrets(value) for key, value in config.items() if not _is_secret(key)}
    if isinstance(config, list):
        return [without_secrets(value) for value in config]
    return SECRET_VALUES.sub("[removed]", config) if isinstance(config, str) else config


def command_of(words: list[str]) -> str:
    """The command of a process from its `sys.orig_argv`: without secrets or code, the home folder as `~`."""
    python, *rest = words
    if rest and Path(rest[0]).name == "trl-prorl":
        python, *rest = rest
    if "-c" in rest:  # code, not options
        rest = rest[: rest.index("-c") + 1] + ["…"]
    kept, hidden = [Path(python).name], False
    for word in rest:
        name, equals, _ = word.partition("=")
        if hidden and not word.startswith("--"):
            hidden = False
        elif name.startswith("--") and _is_secret(name[2:].replace("-", "_")):
            hidden = not equals
        else:
            kept.append(_shown(word))
            hidden = False
    return shlex.join(kept).replace(str(Path.home()), "~")


def _shown(word: str) -> str:
    if "{" in word:  # a mapping, as text
        key, brace, value = word.partition("{")
        try:
            return key + str(without_secrets(yaml.safe_load(brace + value)))
        except yaml.YAMLError:
            return "[removed]"
    return SECRET_VALUES.sub("[removed]", word)


def plugin_options(env: dict[str, Any]) -> str:
    """The `--plugin` options with which a run was started, each with a space before it."""
    return "".join(f" {found}" for found in re.findall(r"--plugin[ =](?:'[^']*'|\S+)", env.get("command") or ""))


def evaluation_of(config: dict[str, Any], env: dict[str, Any], run_dir: Any) -> str:
    """What evaluates a run: a command, or the function for a script with its own rewards and data."""
    if all(config.get(key) for key in EVALUATION_KEYS):
        return f"`trl-prorl passk{plugin_options(env)} --run {shlex.quote(str(run_dir))}`"
    script = f" (`{env['command']}`)" if env.get("command") else ""
    return f"`evaluate(trainer, rows, verifier)` of trl_prorl, at the end of the script{script},"
