"""Local paths in a run's configuration, found from whichever directory one evaluates in."""

import os
from collections.abc import Callable
from pathlib import Path

from eval.runs import InputError, read_json
from trl_prorl.base_model import is_hub_name
from trl_prorl.embedded_base import embedded_model, is_embedded, weights_sha256


def with_local_paths(run_dir: Path, config: dict) -> dict:
    """
    A run's configuration, its relative paths as they lead to their target from here.

    A path is tried as written, then from the run's folder and its parents, the nearest first: the run was started in one of
    them, as a rule. What may be a name on the Hub stays as it is.

    Args:
        run_dir (`Path`): The run folder.
        config (`dict`): Its configuration.

    Raises:
        InputError: If the base model was a local folder and is nowhere.
    """
    found = {
        "model_name_or_path": _model(run_dir, config.get("model_name_or_path")),
        # A bare word only as a file: that a folder above a run bears the name of a data set says nothing.
        "dataset_name": _find(
            run_dir, config.get("dataset_name"), lambda path, name: path.is_file() or ("/" in name and path.is_dir())
        ),
        "output_dir": _find(run_dir, config.get("output_dir"), lambda path, name: path.is_dir()),
    }
    return {**config, **{key: path for key, path in found.items() if path}}


def _model(run_dir: Path, name: str | None) -> str | None:
    def is_model(path, name):
        return (path / "config.json").is_file()

    if name and is_embedded(name):
        return _embedded(run_dir, name)
    if not name or is_model(Path(name), name):
        return name
    if "/" not in name or (is_hub_name(name) and not _was_local(run_dir, name)):
        return name  # and a run folder of that name is no base model
    found = _find(run_dir, name, is_model)
    if found is None:
        raise InputError(
            f"'{run_dir / 'config.yaml'}' names model_name_or_path: {name}, and no such folder with a config.json is here, "
            "beside the run or above it; start where the run was trained, or write there where its base model is now"
        )
    return found


def _embedded(run_dir: Path, name: str) -> str:
    """The folder of an embedded model, if its weights are those that the run began from."""
    try:
        found = embedded_model(name)
    except ValueError as error:
        raise InputError(f"'{run_dir / 'config.yaml'}': {error}") from error
    then, now = _noted(run_dir).get("sha256"), weights_sha256(found)
    if then not in (None, now):
        raise InputError(
            f"'{run_dir}' began from another {name}: its weights had SHA-256 {then[:12]}…, those that come with this version "
            f"of trl-prorl have {now[:12]}…; install the version that '{run_dir / 'env.json'}' names"
        )
    return found


def _noted(run_dir: Path) -> dict:
    """What the run noted of its base model."""
    env = run_dir / "env.json"
    return (read_json(env) if env.is_file() else {}).get("base_model") or {}


def _was_local(run_dir: Path, name: str) -> bool:
    """Whether the run noted that its base model was a local folder."""
    noted = _noted(run_dir)
    return noted.get("name") == name and noted.get("hub_id") is None


def _find(run_dir: Path, name: str | None, accepts: Callable[[Path, str], bool]) -> str | None:
    if not name:
        return None
    if accepts(Path(name), name):
        return name
    # A link's parents, and those of what it leads to.
    starts = (Path(os.path.abspath(run_dir)), run_dir.resolve())
    paths = (folder / name for start in starts for folder in (start, *start.parents))
    return next((str(path) for path in paths if accepts(path, name)), None)
