"""
Pushing a run to the Hub: which files, and as one commit.

The commit is `create_commit` of a list of files: `upload_folder` may split a folder over several commits, and then a
failure leaves a card without its weights.
"""

import fnmatch
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml
from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled
from huggingface_hub.utils import validate_repo_id

from ..errors import PushError
from ..record.base_model import identify
from ..record.links import check_links
from ..record.run_files import CONFIG_FILE, ENV_FILE, EVENTS_FILE, METRICS_FILE, read_json, read_yaml
from ..record.run_id import RUN_ID, is_of_other_run, recorded_run_id, run_id_in
from ..text import shell_quote
from ..weights import check_files
from .card import ADAPTER, CARD_FILE, PASSK_FILE, remove_secrets


MODEL_FILES = (
    "adapter_config.json adapter_model*.safetensors adapter_model.safetensors.index.json config.json "
    "generation_config.json model*.safetensors model.safetensors.index.json"
).split()
TOKENIZER_FILES = (
    "tokenizer.json tokenizer_config.json tokenizer.model special_tokens_map.json added_tokens.json vocab.json "
    "vocab.txt merges.txt spiece.model chat_template.jinja preprocessor_config.json processor_config.json"
).split()
EVALUATIONS = (PASSK_FILE, "drift.json")
RECORD_FILES = (CONFIG_FILE, ENV_FILE, METRICS_FILE, EVENTS_FILE, *EVALUATIONS)
REFERENCE_FOLDER = "ref"

# The client's HTTP library is httpx or, from huggingface_hub 2, httpx2; their common ancestor is this error's.
HTTPError = HfHubHTTPError.__bases__[0]
FAILURES = (HTTPError, OSError, ValueError, RuntimeError)

Content = Path | bytes


def make_api(token: str | None = None) -> HfApi:
    """Return the Hub's client; without a token it takes `HF_TOKEN` or that of `hf auth login`."""
    from .. import __version__

    return HfApi(token=token, library_name="trl-prorl", library_version=__version__)


def files_to_push(
    model_dir: str | os.PathLike, run_dir: str | os.PathLike, *, reference: bool = False, record: bool = True
) -> dict[str, Content]:
    """
    Choose the files of a run that are pushed: the model or adapter, the tokenizer, the card and the record. No pickle,
    no checkpoint, no log, no secret.

    Args:
        model_dir (`str` or `os.PathLike`): Where model, tokenizer and card are.
        run_dir (`str` or `os.PathLike`): Where the record is.
        reference, record (`bool`, *optional*): Whether to push the frozen adapter `ref` and the record, too.

    Returns:
        `dict[str, Path | bytes]`: File or content by its path in the repository.

    Raises:
        `ValueError`: There is no model, or it is not whole, or no adapter `ref` although it shall be pushed, or a link
            leads out of a folder.
    """
    model_dir = Path(model_dir)
    run_dir = Path(run_dir)
    check_links(model_dir)
    check_links(run_dir)
    files: dict[str, Content] = _matching(model_dir, MODEL_FILES)
    if not any(name.endswith(".safetensors") for name in files):
        raise ValueError(
            f"'{model_dir}' holds no trained model (no adapter_model.safetensors, no model.safetensors): let the run "
            "finish, or copy a checkpoint's files there."
        )
    check_files(model_dir)
    if "adapter_config.json" in files:
        files["adapter_config.json"] = _adapter_config(files["adapter_config.json"])
    files |= _matching(model_dir, (*TOKENIZER_FILES, CARD_FILE))
    if reference:
        found = _matching(model_dir / REFERENCE_FOLDER, MODEL_FILES)
        if not found:
            raise ValueError(
                f"'{model_dir}' has no adapter '{REFERENCE_FOLDER}' to push: only a LoRA run with a reference that "
                "moves leaves one. Do not ask for the reference."
            )
        files |= {f"{REFERENCE_FOLDER}/{name}": path for name, path in found.items()}
    if record:
        files |= _matching(run_dir, RECORD_FILES)
        for name in EVALUATIONS:  # an earlier run's stay behind where a new one takes its folder
            if name in files and is_of_other_run({RUN_ID: run_id_in(files[name])}, recorded_run_id(run_dir)):
                del files[name]
        if CONFIG_FILE in files:
            recipe = remove_secrets(read_yaml(files[CONFIG_FILE]))
            files[CONFIG_FILE] = yaml.safe_dump(recipe, sort_keys=True).encode()
    return files


def _matching(folder: Path, patterns: Iterable[str]) -> dict[str, Content]:
    """Return the files of a folder that match a pattern, by name; none if it is not there."""
    if not folder.is_dir():
        return {}
    found: dict[str, Content] = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and any(fnmatch.fnmatchcase(path.name, pattern) for pattern in patterns):
            found[path.name] = path
    return found


def _adapter_config(path: Path) -> Content:
    """Return `adapter_config.json` with the Hub's name of the base, where it names a folder in the Hub's cache."""
    config = read_json(path, ADAPTER)
    name = config.get("base_model_name_or_path")
    hub_id = identify(name).hub_id if name else None
    if hub_id in (None, name):
        return path
    return json.dumps(config | {"base_model_name_or_path": hub_id}, indent=2).encode()


def repo_name(hub_model_id: str | None, folder: str | os.PathLike) -> str:
    """
    Return the repository's name, `hub_model_id` or else the folder's.

    Raises:
        `ValueError`: The Hub allows no such name.
    """
    name = hub_model_id or Path(folder).resolve().name
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        key = f"hub_model_id={name!r}" if hub_model_id else f"the folder's name {name!r}, in place of hub_model_id,"
        raise ValueError(
            f"{key} cannot be a repository's name ({_line(error)}). Set hub_model_id: NAMESPACE/NAME."
        ) from error
    return name


def open_repo(name: str, private: bool | None = None, api: HfApi | None = None) -> str:
    """
    Make sure that a repository is there and that the token is good, before anything is trained.

    Args:
        name (`str`): Its name, with or without its namespace.
        private (`bool`, *optional*): Whether a new one is private; `None` is the Hub's default.
        api (`HfApi`, *optional*): The client.

    Returns:
        `str`: Its full name.

    Raises:
        `ValueError`: It cannot be pushed to.
    """
    api = api or make_api()
    try:
        api.whoami()  # a repository that exists is found without any token
        return api.create_repo(name, private=private, exist_ok=True).repo_id
    except FAILURES as error:
        raise ValueError(f"hub_model_id={name!r} cannot be pushed to: {explain(error)}") from error


def push(
    repo: str,
    files: Mapping[str, Content],
    *,
    message: str,
    again: str,
    revision: str | None = None,
    api: HfApi | None = None,
    folder: str | None = None,
) -> CommitInfo:
    """
    Push files as one commit. Files that have not changed are not sent again.

    Args:
        repo (`str`), message (`str`), revision (`str`, *optional*): The repository, the commit's message, the branch.
        files (`Mapping[str, Path | bytes]`): See [`files_to_push`].
        again (`str`): The command that tries it again, for the error.
        api (`HfApi`, *optional*): The client.
        folder (`str`, *optional*): A folder of the repository that keeps none but these files.

    Raises:
        [`~trl_prorl.errors.PushError`]: It failed.
    """
    api = api or make_api()
    try:
        operations: list = []
        for path, content in sorted(files.items()):
            operations.append(CommitOperationAdd(path, content if isinstance(content, bytes) else str(content)))
        if folder is not None:
            for path in api.list_repo_files(repo, revision=revision):
                if path.startswith(f"{folder}/") and path not in files:
                    operations.append(CommitOperationDelete(path))
        return api.create_commit(repo, operations, commit_message=message, revision=revision)
    except FAILURES as error:
        raise PushError(
            f"the push to {repo} failed: {explain(error)} Nothing is lost: the run is on disk. Try it again with "
            f"{again}"
        ) from error


def push_command(run_dir: str | os.PathLike) -> str:
    """Return the command that pushes a run later."""
    return f"`trl-prorl push --run {shell_quote(str(run_dir))}`"


def explain(error: BaseException) -> str:
    """Return a line that says what a failure means and what to do."""
    while isinstance(error, RuntimeError) and error.__cause__ is not None:
        error = error.__cause__  # an upload's own failure lies beneath that of its thread
    said = _line(getattr(error, "server_message", None) or error)
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE=1 forbids it. Unset HF_HUB_OFFLINE, or set push_to_hub: false."
    if isinstance(error, LocalTokenNotFoundError) or status in (401, 403, 404):
        log_in = "Log in with `hf auth login`, or set HF_TOKEN or hub_token to a token that may write."
        return f"{status or 'there is no token'} ({said}). {log_in}"
    if status is not None:
        return f"the Hub answers {status} ({said})."
    if isinstance(error, HTTPError):
        return f"the Hub cannot be reached ({said}). Look at the network and at HF_ENDPOINT."
    return f"{type(error).__name__}: {said}."


def _line(error: object) -> str:
    return " ".join(str(error).split()).rstrip(".")[:300] or type(error).__name__


def stage(files: Mapping[str, Content], folder: Path) -> dict[str, Content]:
    """
    Copy files into a folder as they are now, for a push in the background: the run goes on, appends to its record and
    deletes checkpoints.
    """
    shutil.rmtree(folder, ignore_errors=True)
    staged: dict[str, Content] = dict(files)
    for name, content in files.items():
        if isinstance(content, Path):
            staged[name] = folder / name
            staged[name].parent.mkdir(parents=True, exist_ok=True)
            copy_or_link(content, staged[name])
    return staged


def copy_or_link(source: str | os.PathLike, target: str | os.PathLike) -> None:
    """Copy a file; weights, which nobody appends to, become hard links where that is possible."""
    if Path(source).suffix in (".safetensors", ".pt", ".bin"):
        try:
            os.link(source, target)
            return
        except OSError:  # another file system, or one without links
            pass
    shutil.copy2(source, target)
