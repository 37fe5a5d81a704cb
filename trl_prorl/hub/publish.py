"""Push a run to the Hub, from copies of its files."""

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import yaml
from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi

from ..errors import PushError
from ..run.files import check_contents, link_or_copy
from ..run.log_files import (
    BASE_ADAPTER,
    CONFIG_FILE,
    DRIFT_FILE,
    ENV_FILE,
    INDEX_FILES,
    LOG_FILES,
    PASSK_FILE,
    read_content,
    read_yaml,
)
from ..run.provenance import SNAPSHOT, remove_secrets
from ..text import one_line, shell_quote
from .card import CARD_FILE


ADAPTER_CONFIG = "adapter_config.json"
MODEL_FILES = (
    ADAPTER_CONFIG,
    "adapter_model*.safetensors",
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    *INDEX_FILES,
)
TOKENIZER_FILES = (
    "tokenizer.json tokenizer_config.json tokenizer.model special_tokens_map.json added_tokens.json vocab.json "
    "vocab.txt merges.txt spiece.model chat_template.jinja preprocessor_config.json processor_config.json"
).split()
RECORD_FILES = (CONFIG_FILE, ENV_FILE, *LOG_FILES, PASSK_FILE, DRIFT_FILE)
REFERENCE_FOLDER = "ref"
LINKED = (".safetensors", ".pt", ".bin")  # weights, which never change


def make_api(token: str | None = None) -> HfApi:
    """Without a token, `HF_TOKEN` or that of `hf auth login` is used."""
    from .. import __version__

    return HfApi(token=token, library_name="trl-prorl", library_version=__version__)


def files_to_push(
    model_dir: str | os.PathLike, run_dir: str | os.PathLike, *, reference: bool = False, record: bool = True
) -> dict[str, Path]:
    """
    Return the files to push, by path in the repository: no pickle, checkpoint or terminal output. Raises `ValueError`:
    the model is missing or incomplete, the requested adapter `ref` is missing, or a link leads out of a folder.
    """
    model_dir = Path(model_dir)
    run_dir = Path(run_dir)
    check_contents(model_dir)
    check_contents(run_dir)
    files = _matching(model_dir, MODEL_FILES)
    if not any(name.endswith(".safetensors") for name in files):
        raise ValueError(
            f"'{model_dir}' contains no trained model (no adapter_model.safetensors, no model.safetensors): let the "
            "run finish, or copy a checkpoint's files there."
        )
    files |= _matching(model_dir, (*TOKENIZER_FILES, CARD_FILE))
    if reference:
        found = _matching(model_dir / REFERENCE_FOLDER, MODEL_FILES)
        if not found:
            raise ValueError(
                f"'{model_dir}' has no adapter '{REFERENCE_FOLDER}' to push: only a LoRA run with a moving reference "
                "has one. Leave --with-reference (hub_push_reference) out."
            )
        files |= {f"{REFERENCE_FOLDER}/{name}": path for name, path in found.items()}
    if record:
        files |= _matching(run_dir, RECORD_FILES)
    return files


def _matching(folder: Path, patterns: Iterable[str]) -> dict[str, Path]:
    return {path.name: path for pattern in patterns for path in sorted(folder.glob(pattern)) if path.is_file()}


def stage(files: Mapping[str, Path], folder: Path) -> Path:
    """
    Copy files without secrets, and with the Hub name of a base in the Hub's cache: a run continues during a push.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        for name, path in files.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            copy = link_or_copy if path.suffix in LINKED else shutil.copy2
            copy(path, target)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    recipe = folder / CONFIG_FILE
    if recipe.is_file():
        recipe.write_text(yaml.safe_dump(remove_secrets(read_yaml(recipe)), sort_keys=True))
    for adapter in (folder / ADAPTER_CONFIG, folder / REFERENCE_FOLDER / ADAPTER_CONFIG):
        if not adapter.is_file():
            continue
        config = read_content(adapter)
        name = config.get("base_model_name_or_path")
        snapshot = SNAPSHOT.search(name or "")
        if snapshot:
            base = {"base_model_name_or_path": snapshot["repo"].replace("--", "/"), "revision": snapshot["commit"]}
            adapter.write_text(json.dumps(config | base, indent=2))
    return folder


def open_repo(name: str, private: bool | None, api: HfApi) -> str:
    """
    Create a repository if needed (`private=None`: the Hub's default). Returns its full name. Raises `ValueError`: it
    cannot be pushed to.
    """
    try:
        api.whoami()  # an existing repository is found without any token
        repo = api.create_repo(name, private=private, exist_ok=True).repo_id
        api.auth_check(repo, write=True)  # `create_repo` also returns a repository that others own
        return repo
    except Exception as error:  # the client's errors have no common class
        raise ValueError(
            f"hub_model_id={name!r} cannot be pushed to ({_describe(error)}). Set hub_model_id to NAMESPACE/NAME, "
            "and log in with `hf auth login`, or set HF_TOKEN or hub_token to a token with write permission."
        ) from error


def upload(
    repo: str,
    staged: Path,
    *,
    message: str,
    run_dir: str | os.PathLike,
    revision: str | None = None,
    api: HfApi | None = None,
    replaced: str | None = None,
) -> CommitInfo:
    """
    Upload the folder `staged` of [`stage`] in one commit, and remove it. Files of an earlier push that this one lacks
    are deleted: they may be another model's, or another run's. `run_dir` is for the error; `replaced` is a folder of
    the repository to replace completely. Raises [`~trl_prorl.errors.PushError`].
    """
    api = api or make_api()
    try:
        files = {path.relative_to(staged).as_posix(): path for path in sorted(staged.rglob("*")) if path.is_file()}
        there = api.list_repo_files(repo, revision=revision)
        # Not `upload_folder`: with hf_xet it may make several commits, and a kill between them mixes two models.
        return api.create_commit(
            repo,
            [
                *(CommitOperationDelete(name) for name in _left_over(there, files, replaced)),
                *(CommitOperationAdd(name, path) for name, path in files.items()),
            ],
            commit_message=message,
            revision=revision,
        )
    except Exception as error:  # the client's errors have no common class
        raise PushError(
            f"the push to {repo} failed ({_describe(error)}). The run is saved on disk. Try again with "
            f"{push_command(run_dir, repo)}"
        ) from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _left_over(there: Iterable[str], files: Mapping[str, Path], replaced: str | None) -> list[str]:
    """
    Return the files of a repository that an earlier push left: of its model, its logs if logs are pushed, and of the
    folder `replaced`. A starting adapter stays, unless a checkpoint is pushed: a resume needs it.
    """
    patterns = [*MODEL_FILES, *TOKENIZER_FILES, f"{REFERENCE_FOLDER}/*"]
    if ENV_FILE in files:
        patterns += RECORD_FILES
    if replaced is not None:
        patterns.append(f"{BASE_ADAPTER}/*")
    found = []
    for name in there:
        is_ours = any(fnmatchcase(name, one) and name.count("/") == one.count("/") for one in patterns)
        is_replaced = replaced is not None and name.startswith(f"{replaced}/")
        if (is_ours or is_replaced) and name not in files:
            found.append(name)
    return found


def push_command(run_dir: str | os.PathLike, repo: str | None = None) -> str:
    """Return the command that pushes a run, to `repo` unless its recipe names one."""
    option = f" --repo {shell_quote(repo)}" if repo else ""
    return f"`trl-prorl push --run {shell_quote(str(run_dir))}{option}`"


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {one_line(error).rstrip('.')[:300]}"
