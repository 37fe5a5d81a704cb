"""
Make one update of a LoRA run in NumPy, from files to files: growth, reset, clipping, Adam.

    python docs/examples/numpy_engine/engine.py FOLDER

The command reads the inputs of an update from FOLDER, where `trl_prorl.interchange.export_update` has written them,
and writes the outputs to the same folder, where `import_update` reads them. It needs only Python and NumPy, and knows
only the file format (docs/interchange.md). It computes in float64 and rounds when it writes the outputs. The trainer's
hashes are XXH3, which Python lacks: if xxhash is installed, they are compared, otherwise a line says they were not.
The outputs have SHA-256 hashes.
"""

import hashlib
import json
import math
import struct
import sys
from pathlib import Path

import numpy as np


try:
    from xxhash import xxh3_128
except ImportError:
    xxh3_128 = None

FORMAT = "trl_prorl.interchange"
VERSION = 1
# By the names of safetensors. NumPy has no bfloat16: its numbers are the upper halves of float32.
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8"}
STATE = ("parameters", "exp_avg", "exp_avg_sq", "steps")


# ------------------------------------------------------------------------------------------------------ the algorithm
# `tensors[kind][name]` are the parameters, Adam's m, v and t, the gradients and the new rows, in float64.


def grow(tensors, growth):
    """
    A longer LoRA: rows below each A, zero columns to the right of each B, and zeros in m and v where they are new.

    The columns of B are not the end of its memory: B is stored row by row, so each of its rows gets its own. t is one
    number for the tensor, so the new part has the age of the old one.
    """
    more = growth["new_rank"] - growth["old_rank"]
    for kind in ("parameters", "exp_avg", "exp_avg_sq"):
        for name, value in tensors[kind].items():
            parts = name.split(".")
            if "lora_A" in parts:
                rows = tensors["new_rows"][name] if kind == "parameters" else np.zeros((more, value.shape[1]))
                tensors[kind][name] = np.concatenate([value, rows], axis=0)
            elif "lora_B" in parts:
                tensors[kind][name] = np.concatenate([value, np.zeros((value.shape[0], more))], axis=1)


def reset(tensors, mode, alpha):
    """
    keep: nothing. hard: m = v = t = 0. soft: m and v times alpha. asym: m = 0. step: t = 0. scale(F, G): m times F, v
    times G; with ", step" after them t = 0.
    """
    factors = {
        "keep": (1, 1, 1),
        "hard": (0, 0, 0),
        "soft": (alpha, alpha, 1),
        "asym": (0, 1, 1),
        "step": (1, 1, 0),
    }
    if mode.startswith("scale("):
        first, second, *step = mode.removeprefix("scale(").removesuffix(")").split(",")
        factors[mode] = (float(first), float(second), 0 if step else 1)
    for kind, factor in zip(("exp_avg", "exp_avg_sq", "steps"), factors[mode], strict=True):
        tensors[kind] = {name: factor * value for name, value in tensors[kind].items()}


def norm_of(gradients):
    """The Euclidean norm of all gradients together."""
    return math.sqrt(sum(float(np.sum(np.square(value, dtype=np.float64))) for value in gradients.values()))


def adam(tensors, name, gradient, group):
    """Adam, or AdamW where the decay is decoupled, on one parameter."""
    weight = tensors["parameters"][name]
    lr = group["lr"]
    beta1 = group["beta1"]
    beta2 = group["beta2"]
    if group["decoupled"]:
        weight = weight * (1.0 - lr * group["weight_decay"])
    else:
        gradient = gradient + group["weight_decay"] * weight
    t = tensors["steps"][name] + 1
    m = beta1 * tensors["exp_avg"][name] + (1.0 - beta1) * gradient
    v = beta2 * tensors["exp_avg_sq"][name] + (1.0 - beta2) * gradient**2
    step = (m / (1.0 - beta1**t)) / (np.sqrt(v / (1.0 - beta2**t)) + group["eps"])
    for kind, value in zip(STATE, (weight - lr * step, m, v, t), strict=True):
        tensors[kind][name] = value


def update(tensors, values, rounding=1e-4):
    """
    One update of the state in place, in the order growth, reset, clipping, Adam.

    Args:
        values (`dict`): of the inputs, see docs/interchange.md.
        rounding (`float`): how far the trainer's norm of the gradients may be from ours, relative.

    Returns:
        `dict`: the norm of the gradients, the factor of the clipping, and the norm of the update.
    """
    if values["growth"] is not None:
        grow(tensors, values["growth"])
    if values["reset"] is not None:
        reset(tensors, values["reset"]["mode"], values["reset"]["alpha"])
    gradients = tensors["gradients"]
    norm = norm_of(gradients)
    if not math.isclose(norm, values["grad_norm"], rel_tol=rounding, abs_tol=1e-12):
        raise SystemExit(f"The norm of the gradients is {norm:g}, and the trainer's was {values['grad_norm']:g}.")
    factor = 1.0
    if values["clip_norm"] > 0:
        factor = min(1.0, values["clip_norm"] / (values["grad_norm"] + 1e-6))  # torch adds 1e-6, too
    before = dict(tensors["parameters"])
    for group in values["groups"]:
        for name in group["parameters"]:
            if name in gradients:  # a parameter without a gradient is left as it is
                adam(tensors, name, factor * gradients[name], group)
    moved = norm_of({name: tensors["parameters"][name] - before[name] for name in before})
    return {"grad_norm": norm, "clip_factor": factor, "update_norm": moved}


# ---------------------------------------------------------------------------------------------------------- the files


def load_file(path):
    """The tensors of a safetensors file by their keys, and their dtypes; bfloat16 comes as float32."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    held = {}
    dtypes = {}
    for key, info in json.loads(data[8 : 8 + size]).items():
        if key == "__metadata__":
            continue
        begin, end = (8 + size + offset for offset in info["data_offsets"])
        value = np.frombuffer(data[begin:end], DTYPES[info["dtype"]]).reshape(info["shape"])
        if info["dtype"] == "BF16":
            value = (value.astype("<u4") << 16).view("<f4")
        held[key] = value
        dtypes[key] = info["dtype"]
    return held, dtypes


def stored(value, dtype):
    """A tensor's bytes in a dtype of the files, row by row."""
    if dtype != "BF16":
        return np.ascontiguousarray(value, dtype=DTYPES[dtype]).tobytes()
    bits = np.ascontiguousarray(value, dtype="<f4").view("<u4").astype("<u8")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()  # to the nearest, ties to even


def hash_of_tensor(name, value, dtype, kind=hashlib.sha256):
    """As docs/interchange.md says."""
    head = f"{name}|{dtype}|{','.join(map(str, np.shape(value)))}|"
    return kind(head.encode() + stored(value, dtype)).hexdigest()


def hash_of_sidecar(sidecar):
    """As docs/interchange.md says."""
    rest = {key: value for key, value in sidecar.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_tensors(folder, schema):
    """The tensors of a schema in the plain form, their dtypes and the sidecar, every hash checked that can be."""
    path = Path(folder) / f"{schema}.json"
    sidecar = json.loads(path.read_text())
    told = tuple(sidecar.get(key) for key in ("format", "schema", "version", "form"))
    if told != (FORMAT, schema, VERSION, "plain"):
        raise SystemExit(f"{path} is {told}, and this engine reads {(FORMAT, schema, VERSION, 'plain')}.")
    if hash_of_sidecar(sidecar) != sidecar["sha256"]:
        raise SystemExit(f"{path} does not fit its own hash.")
    file = path.with_suffix(".safetensors")
    try:
        held, dtypes = load_file(file)
    except (OSError, ValueError, KeyError, struct.error) as error:
        raise SystemExit(f"{file} is missing, cut or corrupt ({error}).") from None
    unchecked = 0
    for entry in sidecar["tensors"]:
        name = entry["name"]
        key = "sha256" if "sha256" in entry else "xxh3_128"
        kind = hashlib.sha256 if key == "sha256" else xxh3_128
        if kind is None:
            unchecked += 1
        elif name not in held or hash_of_tensor(name, held[name], dtypes[name], kind) != entry[key]:
            raise SystemExit(f"{path}: tensor {name} does not fit its hash.")
    if unchecked:
        print(f"{path}: the hashes of {unchecked} tensors were not compared, because xxhash is not installed.")
    return held, dtypes, sidecar


def write_tensors(folder, schema, values, tensors, dtypes):
    """Write a schema in the plain form: the tensors first, the sidecar last."""
    path = Path(folder) / f"{schema}.json"
    file = path.with_suffix(".safetensors")
    header = {}
    data = b""
    entries = []
    for name, value in tensors.items():
        raw = stored(value, dtypes[name])
        described = {"dtype": dtypes[name], "shape": list(np.shape(value))}
        header[name] = {**described, "data_offsets": [len(data), len(data) + len(raw)]}
        entry = {"name": name, "key": name, "file": file.name, **described}
        entries.append(entry | {"sha256": hash_of_tensor(name, value, dtypes[name])})
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the numbers are aligned
    sidecar = {"format": FORMAT, "schema": schema, "version": VERSION, "form": "plain"}
    sidecar |= {"values": values, "tensors": entries, "scalars": []}
    sidecar["sha256"] = hash_of_sidecar(sidecar)
    path.unlink(missing_ok=True)
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)
    path.write_text(json.dumps(sidecar, indent=1))


def read_inputs(folder):
    """The tensors of an update by kind and name, in float64; their dtypes in the file, and the sidecar."""
    held, dtypes, sidecar = read_tensors(folder, "inputs")
    tensors = {kind: {} for kind in (*STATE, "gradients", "new_rows")}
    for key, value in held.items():
        kind, _, name = key.partition("/")
        tensors[kind][name] = np.array(value, dtype=np.float64)
    return tensors, dtypes, sidecar


def main(folder):
    """Make the update of one folder, and write its outputs in the dtypes of the inputs."""
    tensors, dtypes, sidecar = read_inputs(folder)
    values = sidecar["values"]
    metrics = update(tensors, values, rounding=0.03 if {"BF16", "F16"} & set(dtypes.values()) else 1e-4)
    outputs = {f"{kind}/{name}": tensors[kind][name] for kind in STATE for name in values["names"]}
    said = {"names": values["names"], "update": values["update"], "inputs": sidecar["sha256"], "metrics": metrics}
    write_tensors(folder, "outputs", said, outputs, dtypes)
    print(f"update {values['update']}: " + ", ".join(f"{name} {value:g}" for name, value in metrics.items()))


if __name__ == "__main__":
    main(sys.argv[1])
