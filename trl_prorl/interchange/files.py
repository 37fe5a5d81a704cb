"""
A schema on disk: `inputs.safetensors`, and a JSON sidecar `inputs.json` that names every tensor, its shape, its dtype
and its hash.

A writer puts the sidecar in place last, so that a schema is there whole or not at all.
"""

import hashlib
import json
import os
from collections import Counter
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
from .json_types import TypeMismatchError, check_type
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
# The hashes that an entry of the sidecar may have, one of them: an engine need not have XXH3.
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
        [`~trl_prorl.errors.InputError`]: The parts do not fit each other, or a value is not finite.
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
    entries = sidecar["tensors"]
    file = folder / f"{cls.schema}.safetensors"
    needed = {label: needed for _, _, label, needed in cls.places(sidecar["values"].get("names", ()))}
    _check_names(folder / f"{cls.schema}.json", needed, [entry["name"] for entry in entries])
    keys = {entry["key"]: entry["name"] for entry in entries}
    held = _load(file, keys) if entries else {}
    tensors = {entry["name"]: _checked(file, entry, held) for entry in entries}
    data = cls.of(tensors, sidecar["values"])
    data.check()
    return data


def read_sidecar(cls: type[Schema], folder: Path) -> dict[str, Any]:
    """Read the sidecar of a schema, and check its version, structure and hash."""
    path = Path(folder) / f"{cls.schema}.json"
    try:
        sidecar = parse_json(path.read_text())
        for key, kind in (("format", str), ("schema", str), ("version", int)):
            check_type(sidecar.get(key) if isinstance(sidecar, dict) else None, kind, key)
    except FileNotFoundError:
        raise InputError(f"{path} is missing: nothing was written there, or the write did not finish.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error}). Give the folder of an export.") from None
    except ValueError as error:
        raise InputError(f"{path} is not a complete sidecar ({error}). Write it again.") from None
    if (sidecar["format"], sidecar["schema"]) != (FORMAT, cls.schema):
        is_one_of = f"{short(sidecar['format'])} {short(sidecar['schema'])}"
        raise InputError(f"{path} is {is_one_of}, not {FORMAT} {cls.schema}.")
    version = sidecar["version"]
    if version != cls.version:
        newer = "of a later release: update trl-prorl" if version > cls.version else "which no release reads"
        raise InputError(f"{path} has version {version} of {cls.schema}, {newer} (here {cls.version}).")
    try:
        check_type(sidecar, Sidecar)
        if sidecar["form"] != FORM or sidecar["scalars"]:
            raise TypeMismatchError(f"form is {short(sidecar['form'])}, or there are scalars; {FORM} is needed")
        cls.check_values(sidecar["values"])
        fits_its_hash = sidecar_hash(sidecar) == sidecar["sha256"]
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: {error}. Write it again.") from None
    if not fits_its_hash:
        raise InputError(f"{path} does not match its own hash: it was truncated or changed. Write it again.")
    for entry in sidecar["tensors"]:
        where = f"{path}: tensor {entry['name']}"
        if sum(key in entry for key in HASHES) != 1:
            raise InputError(f"{where} needs exactly one hash, {' or '.join(HASHES)}. Write it again.")
        if entry["file"] != f"{cls.schema}.safetensors":
            raise InputError(f"{where} is in {entry['file']}, not in {cls.schema}.safetensors. Write it again.")
    return sidecar


def _check_names(path: Path, needed: Mapping[str, bool], names: list[str]) -> None:
    """Require every tensor that has to be there, and refuse one that is unknown or there twice."""
    counts = Counter(names)
    for name, count in counts.items():
        if name not in needed or count > 1:
            raise InputError(f"{path}: tensor {name} is not part of this schema, or is listed twice.")
    for name in needed:
        if needed[name] and name not in counts:
            raise InputError(f"{path}: tensor {name} is missing.")


def _load(path: Path, names: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """Load the tensors of a file by their keys, those of the sidecar and no other; `names` by key."""
    first = next(iter(names.values()))
    try:
        held = load_file(path)
    except FileNotFoundError:
        raise InputError(f"{path} is missing, so tensor {first} is, too.") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is truncated or corrupt, so tensor {first} cannot be read ({error}).") from None
    for key in held:
        if key not in names:
            raise InputError(f"{path}: tensor {key} is in the file, but not in the sidecar.")
    for key, name in names.items():
        if key not in held:
            raise InputError(f"{path}: tensor {name} is missing from the file.")
    return held


def _checked(path: Path, entry: dict, held: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return a tensor, if it is what its entry says."""
    tensor = held[entry["key"]]
    name = entry["name"]
    found = f"{DTYPES.get(tensor.dtype, tensor.dtype)} {list(tensor.shape)}"
    said = f"{entry['dtype']} {entry['shape']}"
    if found != said:
        raise InputError(f"{path}: tensor {name} is {found} in the file and {said} in the sidecar.")
    kind = next(key for key in HASHES if key in entry)
    if tensor_hash(name, tensor, HASHES[kind]) != entry[kind]:
        raise InputError(
            f"{path}: tensor {name} does not match its hash: it was changed, or replaced by another tensor."
        )
    return tensor
