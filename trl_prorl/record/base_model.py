"""The name of a run's base model: on the Hub, or the local folder and the model that it says it was made from."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from ..embedded import shipped as embedded_base
from ..embedded.gguf_base import gguf_sha256, is_gguf
from ..errors import InputError
from .run_files import WEIGHTS, read_json


# A file of weights of up to READ_WHOLE bytes is read whole, of a larger one BLOCKS blocks of BLOCK bytes.
READ_WHOLE = 2**26
BLOCK = 4096
BLOCKS = 4096

# A download in the Hub's cache, which is a local folder but a model of the Hub.
SNAPSHOT = re.compile(r"models--(?P<repo>[^/\\]+)[/\\]snapshots[/\\][0-9a-f]+[/\\]?$")


@dataclass(frozen=True)
class BaseModel:
    """
    The model that a run trained.

    Attributes:
        name (`str`): As the run was given it; of an embedded model `embedded:TASK:SEED`.
        hub_id (`str` or `None`): Its name on the Hub; `None` if it is a local folder.
        origin (`str` or `None`): The Hub model that a local folder's `config.json` says it was made from.
        sha256 (`str` or `None`): Hash of the weights, of an embedded model, see [`~trl_prorl.embedded.shipped`]; of a
            base out of a GGUF file, that file's.
    """

    name: str
    hub_id: str | None = None
    origin: str | None = None
    sha256: str | None = None

    @property
    def short_name(self) -> str:
        """The Hub name, or the last part of the path."""
        return self.hub_id or Path(self.name).name

    @property
    def is_gguf(self) -> bool:
        """Return whether it was made of a GGUF file."""
        return is_gguf(self.name)

    @property
    def is_embedded(self) -> bool:
        """Return whether it is a model that comes with this package."""
        return embedded_base.is_embedded(self.name)


def identify(name: str) -> BaseModel:
    """Find out what a `model_name_or_path` stands for, on the machine that it is meant for."""
    embedded = embedded_base.full_name(name)
    if embedded:
        return BaseModel(embedded, sha256=embedded_base.weights_sha256(embedded))
    if is_gguf(name):
        return BaseModel(name, sha256=gguf_sha256(name))
    snapshot = SNAPSHOT.search(name)
    if snapshot:
        return BaseModel(name, hub_id=snapshot["repo"].replace("--", "/"))
    if Path(name).is_dir():
        return BaseModel(name, origin=_origin(Path(name, "config.json")), sha256=embedded_base.weights_sha256(name))
    return BaseModel(name, hub_id=name if is_hub_name(name) else None)


def fingerprint(name: str) -> str | None:
    """
    Hash the files of the weights in a local folder: it tells them from others of the same shape.

    Of large files it covers the size and blocks spread evenly over them, so that it costs no time. `None` if it is not
    a folder with weights.
    """
    files = sorted(path for glob in WEIGHTS for path in Path(name).glob(glob) if path.name != "training_args.bin")
    if not files:
        return None
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with open(path, "rb") as file:
            if size <= READ_WHOLE:
                digest.update(file.read())
                continue
            for start in (*range(0, size - BLOCK, size // BLOCKS), size - BLOCK):
                file.seek(start)
                digest.update(file.read(BLOCK))
    return digest.hexdigest()


def hub_commit(name: str, revision: str | None = None) -> str | None:
    """
    Return the commit of a Hub model in the client's cache, as 40 hexadecimal digits.

    `None` if the model was never loaded here, or is not on the Hub.

    Args:
        name (`str`): `owner/name`.
        revision (`str`, *optional*): Branch, tag or commit.
    """
    if not is_hub_name(name):
        return None
    config = try_to_load_from_cache(name, "config.json", revision=revision or "main")
    return Path(config).parent.name if isinstance(config, str) else None


def is_hub_name(name: str) -> bool:
    """Return whether it could be `owner/name` on the Hub."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return "/" in name


def _origin(config: Path) -> str | None:
    try:
        name = read_json(config).get("_name_or_path")
    except InputError:
        return None
    return name if isinstance(name, str) and is_hub_name(name) else None
