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
import os
import struct
import sys
from dataclasses import dataclass, field
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


@dataclass
class State:
    """Parameters, Adam's m and v, and its t, by the parameters' names."""

    parameters: dict[str, np.ndarray]
    exp_avg: dict[str, np.ndarray]
    exp_avg_sq: dict[str, np.ndarray]
    steps: dict[str, np.ndarray]

    @classmethod
    def in_float64(cls, *kinds):
        """A copy to compute with."""
        return cls(*({name: np.array(value, dtype=np.float64) for name, value in kind.items()} for kind in kinds))


@dataclass
class Inputs:
    """Inputs of an update other than the state; see docs/interchange.md."""

    gradients: dict[str, np.ndarray]
    new_rows: dict[str, np.ndarray]
    values: dict
    dtypes: dict[str, str] = field(default_factory=dict)  # of the tensors of the state, in the files
    sha256: str = ""


def grow(state, new_rows, growth):
    """
    A longer LoRA: rows below each A, zero columns to the right of each B, and zeros in m and v where they are new.

    The columns of B are not the end of its memory: B is stored row by row, so each of its rows gets its own.
    """
    more = growth["new_rank"] - growth["old_rank"]
    for name, value in state.parameters.items():
        parts = name.split(".")
        if "lora_A" in parts:
            state.parameters[name] = np.concatenate([value, new_rows[name]], axis=0)
            added = np.zeros((more, value.shape[1]))
            axis = 0
        elif "lora_B" in parts:
            added = np.zeros((value.shape[0], more))
            axis = 1
            state.parameters[name] = np.concatenate([value, added], axis=axis)
        else:
            continue
        state.exp_avg[name] = np.concatenate([state.exp_avg[name], added], axis=axis)
        state.exp_avg_sq[name] = np.concatenate([state.exp_avg_sq[name], added], axis=axis)
        # t is one number for the tensor, so the new part has the age of the old one.


def reset(state, mode, alpha):
    """keep: nothing. hard: m = v = t = 0. soft: m and v times alpha. asym: m = 0. step: t = 0."""
    on_m, on_v, on_t = {
        "keep": (1, 1, 1),
        "hard": (0, 0, 0),
        "soft": (alpha, alpha, 1),
        "asym": (0, 1, 1),
        "step": (1, 1, 0),
    }[mode]
    for name in state.parameters:
        state.exp_avg[name] = on_m * state.exp_avg[name]
        state.exp_avg_sq[name] = on_v * state.exp_avg_sq[name]
        state.steps[name] = on_t * state.steps[name]


def norm_of(gradients):
    """The Euclidean norm of all gradients together."""
    return math.sqrt(sum(float(np.sum(np.square(value, dtype=np.float64))) for value in gradients.values()))


def clip_factor(norm, clip_norm):
    """The factor on the gradients; torch adds 1e-6 to the norm."""
    return min(1.0, clip_norm / (norm + 1e-6)) if clip_norm > 0 else 1.0


def adam(state, name, gradient, group):
    """Adam, or AdamW where the decay is decoupled, on one parameter."""
    weight = state.parameters[name]
    lr = group["lr"]
    beta1 = group["beta1"]
    beta2 = group["beta2"]
    if group["decoupled"]:
        weight = weight * (1.0 - lr * group["weight_decay"])
    else:
        gradient = gradient + group["weight_decay"] * weight
    t = state.steps[name] + 1
    m = beta1 * state.exp_avg[name] + (1.0 - beta1) * gradient
    v = beta2 * state.exp_avg_sq[name] + (1.0 - beta2) * gradient**2
    step = (m / (1.0 - beta1**t)) / (np.sqrt(v / (1.0 - beta2**t)) + group["eps"])
    state.parameters[name] = weight - lr * step
    state.exp_avg[name] = m
    state.exp_avg_sq[name] = v
    state.steps[name] = t


def update(state, inputs):
    """
    One update of a state, in place, in the order growth, reset, clipping, Adam.

    Returns:
        `dict`: the norm of the gradients, the factor of the clipping, and the norm of the update.
    """
    values = inputs.values
    if values["growth"] is not None:
        grow(state, inputs.new_rows, values["growth"])
    if values["reset"] is not None:
        reset(state, values["reset"]["mode"], values["reset"]["alpha"])
    norm = norm_of(inputs.gradients)
    rounding = 0.03 if "BF16" in inputs.dtypes.values() or "F16" in inputs.dtypes.values() else 1e-4
    if not math.isclose(norm, values["grad_norm"], rel_tol=rounding, abs_tol=1e-12):
        raise SystemExit(f"The norm of the gradients is {norm:g}, and the trainer's was {values['grad_norm']:g}.")
    factor = clip_factor(values["grad_norm"], values["clip_norm"])
    before = dict(state.parameters)
    for group in values["groups"]:
        for name in group["parameters"]:
            if name in inputs.gradients:  # a parameter without a gradient is left as it is
                adam(state, name, factor * inputs.gradients[name].astype(np.float64), group)
    moved = norm_of({name: state.parameters[name] - before[name] for name in before})
    return {"grad_norm": norm, "clip_factor": factor, "update_norm": moved}


# ---------------------------------------------------------------------------------------------------------- the files


def load_file(path):
    """The tensors of a safetensors file by their keys, and their dtypes; bfloat16 comes as float32."""
    data = Path(path).read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    held = {}
    dtypes = {}
    for key, info in json.loads(data[8 : 8 + size]).items():
        if key == "__metadata__":
            continue
        begin, end = (8 + size + offset for offset in info["data_offsets"])
        if end > len(data):
            raise ValueError(f"tensor {key} is cut")
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
    file = Path(folder) / f"{schema}.safetensors"
    try:
        held, dtypes = load_file(file)
    except (OSError, ValueError, KeyError, struct.error) as error:
        raise SystemExit(f"{file} is missing, cut or corrupt ({error}).") from None
    unchecked = 0
    for entry in sidecar["tensors"]:
        name = entry["name"]
        said = (entry["dtype"], entry["shape"])
        if name not in held or (dtypes[name], list(held[name].shape)) != said:
            raise SystemExit(f"{path}: tensor {name} is missing or is not {said}.")
        key = "sha256" if "sha256" in entry else "xxh3_128"
        kind = hashlib.sha256 if key == "sha256" else xxh3_128
        if kind is None:
            unchecked += 1
        elif hash_of_tensor(name, held[name], dtypes[name], kind) != entry[key]:
            raise SystemExit(f"{path}: tensor {name} does not fit its hash.")
    if unchecked:
        print(f"{path}: the hashes of {unchecked} tensors were not compared, because xxhash is not installed.")
    return held, dtypes, sidecar


def write_tensors(folder, schema, values, tensors, dtypes):
    """Write a schema in the plain form: the tensors first, the sidecar last."""
    folder = Path(folder)
    header = {}
    data = []
    entries = []
    place = f"{schema}.safetensors"
    begin = 0
    for name, value in tensors.items():
        raw = stored(value, dtypes[name])
        shape = list(np.shape(value))
        entry = {"name": name, "key": name, "file": place, "dtype": dtypes[name], "shape": shape}
        entries.append(entry | {"sha256": hash_of_tensor(name, value, dtypes[name])})
        header[name] = {"dtype": dtypes[name], "shape": shape, "data_offsets": [begin, begin + len(raw)]}
        begin += len(raw)
        data.append(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the numbers are aligned
    sidecar = {"format": FORMAT, "schema": schema, "version": VERSION, "form": "plain"}
    sidecar |= {"values": values, "tensors": entries, "scalars": []}
    sidecar["sha256"] = hash_of_sidecar(sidecar)
    (folder / f"{schema}.json").unlink(missing_ok=True)
    replace(folder / place, b"".join([struct.pack("<Q", len(text)), text, *data]))
    replace(folder / f"{schema}.json", json.dumps(sidecar, indent=1).encode())


def replace(path, data):
    """Write a file aside, and give it its name."""
    aside = path.with_name(f".{path.name}.part")
    aside.write_bytes(data)
    os.replace(aside, path)


def read_inputs(folder):
    """The state and the inputs of an update."""
    held, dtypes, sidecar = read_tensors(folder, "inputs")
    kinds = {}
    for name, value in held.items():
        kind, _, of = name.partition("/")
        kinds.setdefault(kind, {})[of] = value
    inputs = Inputs(kinds.get("gradients", {}), kinds.get("new_rows", {}), sidecar["values"])
    inputs.dtypes = {name: dtype for name, dtype in dtypes.items() if name.partition("/")[0] in STATE}
    inputs.sha256 = sidecar["sha256"]
    return State.in_float64(*(kinds[kind] for kind in STATE)), inputs


def write_outputs(folder, state, inputs, metrics):
    """Write the outputs of an update, in the dtypes of the inputs."""
    names = inputs.values["names"]
    tensors = {f"{kind}/{name}": getattr(state, kind)[name] for kind in STATE for name in names}
    values = {"names": names, "update": inputs.values["update"], "inputs": inputs.sha256, "metrics": metrics}
    write_tensors(folder, "outputs", values, tensors, inputs.dtypes)


def main(folder):
    """The update of one folder."""
    state, inputs = read_inputs(folder)
    metrics = update(state, inputs)
    write_outputs(folder, state, inputs, metrics)
    print(f"update {inputs.values['update']}: " + ", ".join(f"{name} {value:g}" for name, value in metrics.items()))


if __name__ == "__main__":
    main(sys.argv[1])
