"""
A schema on disk: `inputs.safetensors`, and a JSON sidecar `inputs.json` that names every tensor, its shape, its dtype
and its hash.

A writer puts the sidecar in place last, so that a schema is there whole or not at all.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from xxhash import xxh3_128

from ..errors import InputError
from ..files import replaced
from ..text import parse_json, short
from .json_types import check_type
from .schemas import Schema


FORMAT = "trl_prorl.interchange"
FORM = "plain"
# The names of safetensors.
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.bool: "BOOL",
    torch.uint8: "U8",
}
# The hashes of which an entry of the sidecar has one: an engine need not have XXH3.
HASHES = {"xxh3_128": xxh3_128, "sha256": hashlib.sha256}


class Entry(TypedDict):
    """What a sidecar says of a tensor."""

    name: str
    key: str
    file: str
    dtype: str
    shape: list[int]
    xxh3_128: NotRequired[str]
    sha256: NotRequired[str]


class Sidecar(TypedDict):
    """What `inputs.json` and the like hold."""

    format: str
    schema: str
    version: int
    form: str
    values: dict
    tensors: list[Entry]
    scalars: list
    sha256: str


S = TypeVar("S", bound=Schema)


# ------------------------------------------------------------------------------------------------------------ hashes


def tensor_hash(name: str, tensor: torch.Tensor, kind: Callable = xxh3_128) -> str:
    """
    Hash a tensor on the CPU: name, dtype and shape as `name|F32|4,32|`, then its bytes, row by row.

    It is XXH3 of 128 bits unless `kind` is another; SHA-256 would take as long as the writing.
    """
    digest = kind(f"{name}|{DTYPES[tensor.dtype]}|{','.join(map(str, tensor.shape))}|".encode())
    digest.update(memoryview(tensor.contiguous().flatten().view(torch.uint8).numpy()))
    return digest.hexdigest()


def sidecar_hash(sidecar: Mapping[str, Any]) -> str:
    """Hash a sidecar without its own hash, as JSON with sorted keys and no spaces, by SHA-256."""
    rest = {key: value for key, value in sidecar.items() if key != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


# ------------------------------------------------------------------------------------------------------------- write


def write(data: Schema, folder: str | os.PathLike) -> str:
    """
    Write a schema into a folder, in place of one that is there.

    Args:
        data ([`~trl_prorl.interchange.schemas.Schema`]): [`Rollout`], [`UpdateInputs`] or [`UpdateOutputs`].
        folder (`str` or `os.PathLike`): Made if it is missing.

    Returns:
        `str`: The hash of the sidecar.

    Raises:
        [`~trl_prorl.errors.InputError`]: A value is not of its type, or is not finite.
    """
    data.check()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in data.tensors().items()}
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise InputError(
                f"{data.schema}: tensor {name} is {tensor.dtype}, not one of {', '.join(map(str, DTYPES))}."
            )
    file = f"{data.schema}.safetensors"
    (folder / f"{data.schema}.json").unlink(missing_ok=True)  # what it describes is about to be replaced
    with replaced(folder / file) as aside:
        save_file(tensors, aside)
    entries = []
    for name, tensor in tensors.items():
        entry = {
            "name": name,
            "key": name,
            "file": file,
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "xxh3_128": tensor_hash(name, tensor),
        }
        entries.append(entry)
    sidecar = {
        "format": FORMAT,
        "schema": data.schema,
        "version": data.version,
        "form": FORM,
        "values": data.values(),
        "tensors": entries,
        "scalars": [],
    }
    sidecar["sha256"] = sidecar_hash(sidecar)
    with replaced(folder / f"{data.schema}.json") as aside:
        aside.write_text(json.dumps(sidecar, indent=1) + "\n")
    return sidecar["sha256"]


# -------------------------------------------------------------------------------------------------------------- read


def read(cls: type[S], folder: str | os.PathLike) -> S:
    """
    Read a schema, and check it whole.

    Args:
        cls (`type`): [`Rollout`], [`UpdateInputs`] or [`UpdateOutputs`].
        folder (`str` or `os.PathLike`): Where `write` wrote it.

    Raises:
        [`~trl_prorl.errors.InputError`]: A file is missing, cut, altered, of a later version, or not what its sidecar
            says. The message names the tensor.
    """
    folder = Path(folder)
    sidecar = read_sidecar(cls, folder)
    data = cls.from_tensors(_read_tensors(cls, folder, sidecar), sidecar["values"])
    data.check()
    return data


def read_sidecar(cls: type[Schema], folder: Path) -> dict[str, Any]:
    """Read the sidecar of a schema, and check its version, structure and hash."""
    path = folder / f"{cls.schema}.json"
    try:
        sidecar = parse_json(path.read_text())
        head = [sidecar.get(key) for key in ("format", "schema", "version")]
    except FileNotFoundError:
        raise InputError(f"{path} is missing: nothing was written there, or the write did not finish.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error}). Give the folder of an export.") from None
    except (ValueError, AttributeError) as error:  # no JSON, or no object
        raise InputError(f"{path} is not a complete sidecar ({error}). Write it again.") from None
    if head != [FORMAT, cls.schema, cls.version]:
        raise InputError(
            f"{path} has format, schema and version {short(head)}, and {[FORMAT, cls.schema, cls.version]} is read "
            "here: give another folder, or update trl-prorl if the version is a later one."
        )
    try:
        check_type(sidecar, Sidecar, cls.schema)
        cls.check_values(sidecar["values"])
        fits_its_hash = sidecar_hash(sidecar) == sidecar["sha256"]
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: {error}. Write it again.") from None
    if sidecar["form"] != FORM or sidecar["scalars"] or not fits_its_hash:
        raise InputError(f"{path} does not match its own hash, or has another form than {FORM!r}. Write it again.")
    return sidecar


def _read_tensors(cls: type[Schema], folder: Path, sidecar: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Read the tensors of a schema by their labels, and check that they are those of the sidecar."""
    path = folder / f"{cls.schema}.safetensors"
    labels = cls.labels(sidecar["values"].get("names", ()))
    try:
        held = load_file(path)
    except (SafetensorError, OSError) as error:
        first = next(iter(labels), "of any name")
        raise InputError(
            f"{path} is missing, truncated or corrupt, so tensor {first} cannot be read ({error})."
        ) from None
    tensors = {}
    for entry in sidecar["tensors"]:
        name = entry["name"]
        tensor = held.pop(entry["key"], None)
        if name not in labels or tensor is None:
            raise InputError(f"{path}: tensor {name} is not in the file, is listed twice, or is not of this schema.")
        found = (path.name, DTYPES.get(tensor.dtype), list(tensor.shape))
        said = (entry["file"], entry["dtype"], entry["shape"])
        if found != said:
            raise InputError(f"{path}: tensor {name} is {found}, and its sidecar says {said}. Write it again.")
        kind = "sha256" if "sha256" in entry else "xxh3_128"
        if tensor_hash(name, tensor, HASHES[kind]) != entry.get(kind):
            raise InputError(
                f"{path}: tensor {name} does not match its {kind}: it was changed, or replaced by another tensor."
            )
        tensors[name] = tensor
    for label, is_needed in labels.items():
        if is_needed and label not in tensors:
            raise InputError(f"{path}: tensor {label} is missing from the sidecar.")
    for key in held:
        raise InputError(f"{path}: tensor {key} is in the file, but not in the sidecar.")
    return tensors
