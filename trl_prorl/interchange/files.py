"""
A schema on disk: safetensors, and a JSON sidecar that names every tensor, its shape, its dtype and its hash.

| form | files of the schema `inputs` |
|---|---|
| `plain` | `inputs.json`, `inputs.safetensors` |
| `noma` | `inputs.json`, `inputs/p0001.safetensors`, … |

NOMA's `load_safetensors` keeps the first tensor of a file, reads F32 and F64, and fails on a scalar without a shape; a
name of its language is an identifier. So each tensor has a file and a short key of its own there, other dtypes are
widened, and the numbers of the values are tensors of shape [1] too. The sidecar says which key stands for which name.

A writer puts the sidecar in place last, so that a schema is there whole or not at all.
"""

import hashlib
import json
import os
import shutil
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from xxhash import xxh3_128

from ..errors import InputError
from ..files import replaced
from ..record.run_files import parse_json
from ..text import short
from .schemas import Schema, UpdateInputs, UpdateOutputs, reset_factors
from .structure import fits


FORMAT = "trl_prorl.interchange"
FORMS = ("plain", "noma")
KEYS = ("format", "schema", "version", "form", "values", "tensors", "scalars", "sha256")
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
BY_NAME = {name: dtype for dtype, name in DTYPES.items()}
# The hashes that an entry of the sidecar may have, one of them: an engine need not have XXH3.
HASHES = {"xxh3_128": xxh3_128, "sha256": hashlib.sha256}
# NOMA's files: the first letter of a key by what the tensor is of a parameter; the number is the parameter's.
LETTERS = {"parameters": "p", "gradients": "g", "exp_avg": "m", "exp_avg_sq": "v", "steps": "t", "new_rows": "n"}

S = TypeVar("S", bound=Schema)


# ------------------------------------------------------------------------------------------------------------ hashes


def tensor_hash(name: str, tensor: torch.Tensor, kind: Callable = xxh3_128) -> str:
    """
    A hash of a tensor on the CPU: of name, dtype and shape as `name|F32|4,32|`, then of its bytes, row by row. XXH3 of
    128 bits unless `kind` is another; SHA-256 would take as long as the writing.
    """
    digest = kind(f"{name}|{DTYPES[tensor.dtype]}|{','.join(map(str, tensor.shape))}|".encode())
    digest.update(_bytes_of(tensor))
    return digest.hexdigest()


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """Its bytes, row by row, without a copy if they lie so."""
    return memoryview(tensor.contiguous().flatten().view(torch.uint8).numpy())


def sidecar_hash(sidecar: Mapping[str, Any]) -> str:
    """SHA-256 of a sidecar without its own hash, as JSON with sorted keys and no spaces."""
    rest = {key: value for key, value in sidecar.items() if key != "sha256"}
    return hashlib.sha256(
        json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    ).hexdigest()


# ------------------------------------------------------------------------------------------------------------- write


def write(data: Schema, folder: str | os.PathLike, form: str = "plain") -> str:
    """
    Write a schema into a folder, in place of one that is there.

    Args:
        data ([`~trl_prorl.interchange.schemas.Schema`]): [`Rollout`], [`UpdateInputs`] or [`UpdateOutputs`].
        folder (`str` or `os.PathLike`): Made if it is missing.
        form (`str`, *optional*): `"plain"` or `"noma"`.

    Returns `str`: the hash of the sidecar. Raises [`~trl_prorl.errors.InputError`]: the parts do not fit each other,
    or a value is not finite.
    """
    if form not in FORMS:
        raise InputError(f"form={form!r} is not one of {', '.join(FORMS)}.")
    data.check()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    values = data.values()
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in data.tensors().items()}
    for name, tensor in tensors.items():
        _check_dtype(data.schema, name, tensor)
    (folder / f"{data.schema}.json").unlink(missing_ok=True)  # what it describes is about to be replaced
    if form == "plain":
        file = f"{data.schema}.safetensors"
        placed, scalars = [Placed(name, name, file, tensor) for name, tensor in tensors.items()], []
        with replaced(folder / file) as aside:
            save_file(tensors, aside)
    else:
        placed, scalars = _placed_for_noma(data.schema, tensors, values)
        _write_each(folder, data.schema, [*placed, *scalars])
    entries = [[place.entry() for place in places] for places in (placed, scalars)]
    return write_sidecar(folder, type(data), form, values, *entries)


@dataclass(frozen=True)
class Placed:
    """
    A tensor and its place.

    Attributes:
        name (`str`), key (`str`), file (`str`): In the schema, in its file, and that file from the folder on.
        tensor (`torch.Tensor`): On the CPU, as it is stored.
        was (`str`, *optional*): Its dtype before it was widened.
    """

    name: str
    key: str
    file: str
    tensor: torch.Tensor
    was: str | None = None

    def entry(self) -> dict[str, Any]:
        """What the sidecar says of it."""
        told = {"name": self.name, "key": self.key, "file": self.file, "dtype": DTYPES[self.tensor.dtype]}
        told |= {"shape": list(self.tensor.shape), "xxh3_128": tensor_hash(self.name, self.tensor)}
        return told | ({"was": self.was} if self.was is not None else {})


def _check_dtype(where: str | Path, name: str, tensor: torch.Tensor) -> None:
    if tensor.dtype not in DTYPES:
        raise InputError(f"{where}: tensor {name} is {tensor.dtype}, which is not one of {', '.join(BY_NAME)}.")


def write_sidecar(
    folder: Path, cls: type[Schema], form: str, values: dict, entries: list[dict], scalars: list[dict]
) -> str:
    """Put a sidecar beside files that are in place; return its hash."""
    sidecar = {"format": FORMAT, "schema": cls.schema, "version": cls.version, "form": form}
    sidecar |= {"values": values, "tensors": entries, "scalars": scalars}
    try:
        sidecar["sha256"] = sidecar_hash(sidecar)
    except ValueError:
        name = next(name for name, held in values.items() if not _is_finite(held))
        raise InputError(f"{cls.schema}: {name} is {values[name]}, not finite.") from None
    with replaced(folder / f"{cls.schema}.json") as aside:
        aside.write_text(shown(sidecar))
    return sidecar["sha256"]


def shown(sidecar: Mapping[str, Any]) -> str:
    """A sidecar as JSON, one tensor a line."""
    rows = ("tensors", "scalars")
    lists = {key: ",\n  ".join(map(json.dumps, sidecar[key])) for key in rows}
    parts = [
        f' "{key}": [\n  {lists[key]}\n ]' if key in rows else f' "{key}": {json.dumps(sidecar[key])}'
        for key in sidecar
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _is_finite(held: Any) -> bool:
    if isinstance(held, int | float):
        return abs(held) <= sys.float_info.max
    return all(map(_is_finite, held.values() if isinstance(held, dict) else held if isinstance(held, list) else ()))


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in F32 or F64."""
    if tensor.dtype in (torch.float32, torch.float64):
        return tensor
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.float64)


def scalars_of(values: Mapping[str, Any]) -> dict[str, float]:
    """
    The numbers of the values that a program without JSON needs: `clip_norm`, `lr_1` of the first group, and so on; of
    a reset the factors on m and v, and 0 or 1 for t.
    """
    found = {name: float(held) for name, held in values.items() if isinstance(held, int | float)}
    for number, group in enumerate(values.get("groups", ()), start=1):
        found |= {f"{key}_{number}": float(group[key]) for key in group if key != "parameters"}
    if "reset" in values:
        on_m, on_v, clears = reset_factors(values["reset"])
        found |= {"reset_m": on_m, "reset_v": on_v, "reset_t": 0.0 if clears else 1.0}
    return found


def _placed_for_noma(schema: str, tensors: Mapping, values: Mapping) -> tuple[list[Placed], list[Placed]]:
    """The tensors, and the numbers of the values, each with a file of its own."""
    numbers = {name: place for place, name in enumerate(values.get("names", ()), start=1)}
    placed = []
    for name, tensor in tensors.items():
        kind, _, of = name.partition("/")
        key, wide = f"{LETTERS[kind]}{numbers[of]:04d}" if of else kind, widened(tensor)
        was = DTYPES[tensor.dtype] if wide is not tensor else None
        placed.append(Placed(name, key, f"{schema}/{key}.safetensors", wide, was))
    scalars = [
        Placed(key, key, f"{schema}/{key}.safetensors", torch.tensor([number], dtype=torch.float64))
        for key, number in scalars_of(values).items()
    ]
    return placed, scalars


def _write_each(folder: Path, schema: str, placed: list[Placed]) -> None:
    """One file for each tensor, in `folder / schema`, which is replaced as a whole."""
    aside, final = folder / f".{schema}.part", folder / schema
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        for place in placed:
            _write_one(place, f"{aside}/{place.key}.safetensors")
        shutil.rmtree(final, ignore_errors=True)
        os.replace(aside, final)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _write_one(place: Placed, path: str) -> None:
    """A safetensors file of one tensor; `save_file` takes half as long again where there are many small files."""
    data = _bytes_of(place.tensor)
    info = {"dtype": DTYPES[place.tensor.dtype], "shape": list(place.tensor.shape), "data_offsets": [0, len(data)]}
    header = json.dumps({place.key: info}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # so that the numbers are aligned
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.write(data)


# -------------------------------------------------------------------------------------------------------------- read


def read(cls: type[S], folder: str | os.PathLike) -> S:
    """
    Read a schema, in either form, and check it whole.

    Args:
        cls (`type`): [`Rollout`], [`UpdateInputs`] or [`UpdateOutputs`].
        folder (`str` or `os.PathLike`): Where `write` wrote it.

    Raises [`~trl_prorl.errors.InputError`]: a file is missing, cut, altered, of a later version, or not what its
    sidecar says. The message names the tensor.
    """
    folder = Path(folder)
    sidecar = read_sidecar(cls, folder)
    at, values, entries = folder / f"{cls.schema}.json", sidecar["values"], sidecar["tensors"]
    _check_order(at, cls.order(values), [entry["name"] for entry in entries])
    numbers = scalars_of(values) if sidecar["form"] == "noma" else {}
    stray = next((entry["name"] for entry in sidecar["scalars"] if entry["name"] not in numbers), None)
    if stray is not None:
        raise InputError(f"{at}: scalar {stray} is none of the values. Write it again.")
    tensors = {}
    for file, group in _by_file([*entries, *sidecar["scalars"]]):
        held = _load(folder / file, group)
        for entry in group:
            tensors[entry["name"]] = _checked(folder / file, entry, held)
    for name in numbers.keys() & tensors.keys():
        if (found := tensors.pop(name).tolist()) != [numbers[name]]:
            raise InputError(f"{folder / cls.schema}: tensor {name} is {found}, and the sidecar says {numbers[name]}.")
    data = cls.of(tensors, values)
    data.check()
    return data


def read_sidecar(cls: type[Schema], folder: Path) -> dict[str, Any]:
    """The sidecar of a schema, its version and hash checked."""
    path = Path(folder) / f"{cls.schema}.json"
    try:
        sidecar = parse_json(path.read_text())
        kept = {key: sidecar[key] for key in KEYS}
        unbounded = next((key for key, held in _flat(sidecar) if not _is_finite(held)), None)
        fits_its_hash = unbounded is None and sidecar_hash(sidecar) == kept["sha256"]
    except FileNotFoundError:
        raise InputError(f"{path} is missing: nothing was written there, or not to the end.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error}). Give the folder of an export.") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is not a whole sidecar ({type(error).__name__}: {error}). Write it again.") from None
    if kept["format"] != FORMAT or kept["schema"] != cls.schema:
        raise InputError(f"{path} is {short(kept['format'])} {short(kept['schema'])}, not {FORMAT} {cls.schema}.")
    if kept["version"] != cls.version or not fits(kept["version"], int):
        is_later = fits(kept["version"], int) and kept["version"] > cls.version
        newer = "of a later release: update trl-prorl" if is_later else "which no release reads"
        raise InputError(f"{path} has version {short(kept['version'])} of {cls.schema}, {newer} (here {cls.version}).")
    if unbounded is not None:
        raise InputError(f"{path} holds NaN or infinity in {unbounded}, or a number that large. Write it again.")
    if not fits_its_hash:
        raise InputError(f"{path} does not fit its own hash: it was cut, altered or edited. Write it again.")
    _check_values(path, cls, kept["values"])
    if kept["form"] not in FORMS:
        raise InputError(f"{path} is in the form {short(kept['form'])}, not in one of {', '.join(FORMS)}.")
    for key in ("tensors", "scalars"):
        if not isinstance(kept[key], list):
            raise InputError(f"{path}: {key} is {short(kept[key])}, not a list. Write it again.")
        for entry in kept[key]:
            _check_entry(path, entry, cls.schema, kept["form"])
    return sidecar


def _flat(sidecar: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The parts of a sidecar, each value of the schema by itself."""
    for key, held in sidecar.items():
        yield from held.items() if key == "values" and isinstance(held, dict) else [(key, held)]


def _check_values(path: Path, cls: type[Schema], values: Any) -> None:
    """The values are those of the schema, each of its type."""
    if not isinstance(values, dict) or values.keys() != cls.value_names():
        wrong = sorted(set(values) ^ cls.value_names()) if isinstance(values, dict) else [repr(values)]
        raise InputError(f"{path} has too many or too few values: {', '.join(wrong)}.")
    hints = get_type_hints(cls)
    wrong = next((name for name, held in values.items() if not fits(held, hints[name])), None)
    if wrong is not None:
        raise InputError(f"{path}: {wrong} is {short(values[wrong])}, not of the type that docs/interchange.md says.")
    if values["update"] < 1:
        raise InputError(f"{path}: update is {values['update']}; updates are counted from 1. Write it again.")


def _check_entry(path: Path, entry: Any, schema: str, form: str) -> None:
    """What the sidecar says of a tensor is complete, and its file is where its form has it."""
    types = {"name": str, "key": str, "file": str, "dtype": str, "shape": list[int]}
    hashes = [key for key in HASHES if isinstance(entry, dict) and key in entry]
    if not isinstance(entry, dict) or not all(fits(entry.get(key), kind) for key, kind in types.items()):
        raise InputError(f"{path}: {short(entry)} does not describe a tensor by {', '.join(types)}. Write it again.")
    if len(hashes) != 1:
        raise InputError(f"{path}: tensor {entry['name']} has not one hash, of {' or '.join(HASHES)}. Write it again.")
    if "was" in entry and (not isinstance(entry["was"], str) or entry["was"] not in BY_NAME):
        raise InputError(f"{path}: tensor {entry['name']} was {entry['was']!r}, not one of {', '.join(BY_NAME)}.")
    place = f"{schema}.safetensors" if form == "plain" else f"{schema}/{entry['key']}.safetensors"
    if entry["file"] != place:
        raise InputError(f"{path}: tensor {entry['name']} is in {entry['file']}, not in {place}. Write it again.")


def _by_file(entries: list[dict]) -> Iterator[tuple[str, list[dict]]]:
    grouped: dict[str, list[dict]] = {}
    for entry in entries:
        grouped.setdefault(entry["file"], []).append(entry)
    yield from grouped.items()


def _check_order(path: Path, order: dict[str, bool], names: list[str]) -> None:
    """Every tensor that has to be there, none that is unknown, and in the order of the schema."""
    places = {name: place for place, name in enumerate(order)}
    last = -1
    for name in names:
        if name not in places:
            raise InputError(f"{path}: tensor {name} does not belong to this schema or to no parameter of it.")
        if places[name] <= last:
            raise InputError(f"{path}: tensor {name} is out of order; it comes before {list(order)[last]}.")
        last = places[name]
    missing = next((name for name, needed in order.items() if needed and name not in names), None)
    if missing is not None:
        raise InputError(f"{path}: tensor {missing} is missing.")


def _load(path: Path, entries: list[dict]) -> dict[str, torch.Tensor]:
    """The tensors of one file by their keys, those of the sidecar and no other."""
    names = {entry["key"]: entry["name"] for entry in entries}
    try:
        held = load_file(path)
    except FileNotFoundError:
        raise InputError(f"{path} is missing, and with it tensor {entries[0]['name']}.") from None
    except (SafetensorError, OSError) as error:
        first = names.get(_first_beyond_the_end(path), entries[0]["name"])
        raise InputError(f"{path} is cut or corrupt, from tensor {first} on ({error}).") from None
    for key in held:
        if key not in names:
            raise InputError(f"{path}: tensor {key} is in the file and not in the sidecar.")
    for key, name in names.items():
        if key not in held:
            raise InputError(f"{path}: tensor {name} is missing from the file.")
    return held


def _first_beyond_the_end(path: Path) -> str | None:
    """The key of the first tensor that a cut file does not hold whole; `None` if its header cannot be read."""
    try:
        data = path.read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + size])
        ends = {key: info["data_offsets"][1] for key, info in header.items() if key != "__metadata__"}
    except (OSError, struct.error, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return min((key for key, end in ends.items() if 8 + size + end > len(data)), key=ends.get, default=None)


def _checked(path: Path, entry: dict, held: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """A tensor that is what its entry says, in the dtype that it had."""
    tensor, name = held[entry["key"]], entry["name"]
    found = f"{DTYPES.get(tensor.dtype, tensor.dtype)} {list(tensor.shape)}"
    if found != (told := f"{entry['dtype']} {entry['shape']}"):
        raise InputError(f"{path}: tensor {name} is {found} in the file and {told} in the sidecar.")
    kind = next(key for key in HASHES if key in entry)
    if tensor_hash(name, tensor, HASHES[kind]) != entry[kind]:
        raise InputError(f"{path}: tensor {name} does not fit its hash: altered, or another tensor in its place.")
    return tensor.to(BY_NAME[entry["was"]]) if "was" in entry else tensor


# -------------------------------------------------------------------------------------------- the outputs of a program


def seal_outputs(folder: str | os.PathLike, metrics: Mapping[str, float] | None = None) -> str:
    """
    Write the sidecar of outputs that a NOMA program has left in `folder/outputs/`: `p0001.safetensors`,
    `m0001.safetensors`, `v0001.safetensors`, `t0001.safetensors` and so on, numbered as the inputs in the same folder.

    Args:
        folder (`str` or `os.PathLike`): With `inputs.json` and `outputs/`.
        metrics (`dict`, *optional*): What the engine measured.

    Returns `str`: the hash of the sidecar. Raises [`~trl_prorl.errors.InputError`]: a file is missing or cut; the
    tensor is named.
    """
    folder = Path(folder)
    inputs = read_sidecar(UpdateInputs, folder)
    dtypes = {entry["name"]: entry.get("was", entry["dtype"]) for entry in inputs["tensors"]}
    names = inputs["values"]["names"]
    values = {"names": names, "update": inputs["values"]["update"], "inputs": inputs["sha256"]}
    values["metrics"] = dict(metrics or {})
    entries = []
    for name in UpdateOutputs.order(values):
        kind, _, of = name.partition("/")
        key = f"{LETTERS[kind]}{names.index(of) + 1:04d}"
        file = f"{UpdateOutputs.schema}/{key}.safetensors"
        held = _load(folder / file, [{"key": key, "name": name}])
        _check_dtype(folder / file, name, held[key])
        was = dtypes[name] if dtypes[name] != DTYPES[held[key].dtype] else None
        entries.append(Placed(name, key, file, held[key], was).entry())
    return write_sidecar(folder, UpdateOutputs, "noma", values, entries, [])
