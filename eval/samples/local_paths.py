"""Resolve local paths in a run's configuration, from any working directory."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from trl_prorl.embedded.shipped import embedded_model, is_embedded, weights_sha256
from trl_prorl.errors import InputError
from trl_prorl.eval.run_folder.reading import read_env
from trl_prorl.run.files import check_contents
from trl_prorl.run.provenance import fingerprint, is_hub_name


def with_local_paths(run_dir: Path, config: dict) -> dict:
    """
    Return a run's configuration with relative paths resolved from here, and with the original base model and its
    `quantization`.

    A path is tried as written, then from the run's folder and its parents, nearest first, because the run was usually
    started in one of them. A possible name on the Hub is not changed. The run's record of the base model
    decides: another model of the same name is skipped, and the revision is the Hub commit of the starting model.

    Raises:
        InputError: If the base model was a local folder and is not found, has other weights now, or a link that leads
            out of the folder.
    """
    env = read_env(run_dir)
    noted = env.get("base_model") or {}
    data = config.get("dataset_name")
    may_be_folder = "/" in (data or "")  # a folder above a run may happen to have the name of a data set
    found = {
        "model_name_or_path": _model(run_dir, config.get("model_name_or_path"), noted),
        "dataset_name": _find(run_dir, data, lambda path: path.is_file() or (may_be_folder and path.is_dir())),
    }
    commit = noted.get("commit")
    if commit and noted.get("name") == config.get("model_name_or_path"):
        found["model_revision"] = commit
        given = config.get("model_init_kwargs") or {}
        found["model_init_kwargs"] = {**given, "revision": commit}  # given's may be a branch
    found["quantization"] = env.get("quantization")
    return {**config, **{key: path for key, path in found.items() if path}}


def _model(run_dir: Path, name: str | None, noted: dict) -> str | None:
    """Return the folder of the starting model; a name on the Hub is not changed."""
    if not name:
        return None
    if is_embedded(name):
        return _embedded(run_dir, name, noted)
    was_local = noted.get("name") == name and noted.get("hub_id") is None
    looks_local = "/" in name and (was_local or not is_hub_name(name))
    if not looks_local and not Path(name, "config.json").is_file():
        return name  # a run folder of that name is no base model
    others = []
    for path in _places(run_dir, name):
        if (path / "config.json").is_file():
            check_contents(path)
            if noted.get("sha256") in (None, fingerprint(str(path))):
                return str(path)
            others.append(path)
    if others:
        raise InputError(
            f"'{run_dir / 'config.yaml'}' has model_name_or_path: {name}, but '{others[0]}' has other weights than "
            "the starting model; change it to the folder where the starting model is now"
        )
    raise InputError(
        f"'{run_dir / 'config.yaml'}' has model_name_or_path: {name}, but there is no such folder with a "
        "config.json here, next to the run or above it; run the command where the run was trained, or change it "
        "to the folder where the starting model is now"
    )


def _embedded(run_dir: Path, name: str, noted: dict) -> str:
    """Return the folder of an embedded model, if its weights are those of the starting model."""
    try:
        found = embedded_model(name)
    except ValueError as error:
        raise InputError(f"'{run_dir / 'config.yaml'}': {error}") from error
    then = noted.get("sha256")
    now = weights_sha256(found)
    if then not in (None, now):
        raise InputError(
            f"'{run_dir}' started from other weights of {name}: SHA-256 {then[:12]}…, but this version of trl-prorl "
            f"ships {now[:12]}…; install the version in '{run_dir / 'env.json'}'"
        )
    return found


def _places(run_dir: Path, name: str) -> Iterator[Path]:
    """Yield the paths that a name may mean: as written, then from the run's folder and its parents, nearest first."""
    yield Path(name)
    # The parents of a link, and the parents of its target.
    for start in (Path(os.path.abspath(run_dir)), run_dir.resolve()):
        for folder in (start, *start.parents):
            yield folder / name


def _find(run_dir: Path, name: str | None, accepts: Callable[[Path], bool]) -> str | None:
    if not name:
        return None
    return next((str(path) for path in _places(run_dir, name) if accepts(path)), None)
