"""
Write the files and the program of one update for NOMA, and read its outputs.

    python docs/examples/noma/program.py FOLDER > update.noma   # of export_update(trainer, FOLDER)
    noma run update.noma
    python docs/examples/noma/program.py FOLDER --outputs       # then import_update(trainer, FOLDER)

NOMA's `load_safetensors` keeps the first tensor of a file, reads F32 and F64, and fails on a scalar without a shape; a
name of its language is an identifier. So `spread` gives each tensor a file and a short key of its own,
`FOLDER/inputs/p0001.safetensors`; halves are widened, and the numbers of the values are tensors of shape [1] too.
NOMA has no JSON, no loop over files and no names made at run time, so that the program names every file and every
tensor. It leaves the state in `FOLDER/outputs/`, in F64; `gather` makes it the outputs of the exchange, in the dtypes
of the inputs.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

import jinja2
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from trl_prorl.interchange import UpdateInputs, UpdateOutputs, read, write
from trl_prorl.interchange.schemas import STATE
from trl_prorl.treatments import factors


TEMPLATE = Path(__file__).with_name("update.noma.jinja")
# The first letter of a key by what the tensor is of a parameter; the number is the parameter's.
LETTERS = {"parameters": "p", "gradients": "g", "exp_avg": "m", "exp_avg_sq": "v", "steps": "t", "new_rows": "n"}


def key_of(name: str, names: list[str]) -> str:
    """The short key of `gradients/model.weight`."""
    kind, _, parameter = name.partition("/")
    return f"{LETTERS[kind]}{names.index(parameter) + 1:04d}"


def scalars_of(inputs: UpdateInputs) -> dict[str, float]:
    """
    The numbers of the values: `clip_norm`, `lr_1` of the first group, and so on; of a reset the factors on m and v,
    and 0 or 1 for t.
    """
    found = {"clip_norm": inputs.clip_norm, "grad_norm": inputs.grad_norm, "update": inputs.update}
    for number, group in enumerate(inputs.groups, start=1):
        found |= {f"{key}_{number}": group[key] for key in group if key != "parameters"}
    reset = inputs.reset or {"mode": "keep", "alpha": 1.0}
    on_m, on_v, clears = factors(reset["mode"], reset["alpha"])
    return found | {"reset_m": on_m, "reset_v": on_v, "reset_t": 0.0 if clears else 1.0}


def spread(folder: str) -> None:
    """Write every tensor and every number of an export into a file of its own, in `folder/inputs/`."""
    inputs = read(UpdateInputs, folder)
    place = Path(folder, "inputs")
    held = {key_of(name, inputs.names): tensor for name, tensor in inputs.tensors().items()}
    held |= {key: torch.tensor([float(number)], dtype=torch.float64) for key, number in scalars_of(inputs).items()}
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    Path(folder, "outputs").mkdir(exist_ok=True)  # NOMA makes no folders
    for key, tensor in held.items():
        wide = tensor if tensor.dtype == torch.float64 else tensor.to(torch.float32)
        save_file({key: wide}, place / f"{key}.safetensors")


def gather(folder: str) -> str:
    """The outputs of a program as those of the exchange; the hash of their sidecar."""
    inputs = read(UpdateInputs, folder)
    state = {kind: {} for kind in STATE}
    for kind in STATE:
        for name in inputs.names:
            key = key_of(f"{kind}/{name}", inputs.names)
            try:
                (tensor,) = load_file(Path(folder, "outputs", f"{key}.safetensors")).values()
            except (OSError, SafetensorError, ValueError) as error:
                raise SystemExit(f"{folder}/outputs: tensor {kind}/{name}, {key}.safetensors: {error}") from None
            state[kind][name] = tensor.to(getattr(inputs, kind)[name].dtype)
    sha256 = json.loads(Path(folder, "inputs.json").read_text())["sha256"]
    outputs = UpdateOutputs(**state, names=inputs.names, update=inputs.update, inputs=sha256, metrics={})
    return write(outputs, folder)


def placement(rows: int, columns: int, first: int = 0) -> str:
    """A matrix of zeros with a diagonal of ones that begins in row `first`, as the language writes it."""
    return f"tensor {[[float(row == first + column) for column in range(columns)] for row in range(rows)]}"


def program_for(folder: str) -> str:
    """The text of the program."""
    inputs = read(UpdateInputs, folder)
    growth = None
    if inputs.growth is not None:
        old = inputs.growth["old_rank"]
        new = inputs.growth["new_rank"]
        growth = {"keep_rows": placement(new, old), "place_rows": placement(new, new - old, first=old)}
        growth["keep_columns"] = placement(old, new)
    group_of = {name: k for k, group in enumerate(inputs.groups, start=1) for name in group["parameters"]}
    names = inputs.tensors()
    parameters = []
    for number, name in enumerate(inputs.names, start=1):
        kinds = [kind for kind in (*STATE, "gradients", "new_rows") if f"{kind}/{name}" in names]
        parameters.append(
            {
                "name": name,
                "n": f"{number:04d}",
                "inputs": [key_of(f"{kind}/{name}", inputs.names) for kind in kinds],
                "parts": name.split("."),
                "has_gradient": name in inputs.gradients,
                "group": group_of[name],
                "decoupled": inputs.groups[group_of[name] - 1]["decoupled"],
            }
        )
    unused = ("grad_norm", "update", "decoupled")
    numbers = [key for key in scalars_of(inputs) if not key.startswith(unused)]
    environment = jinja2.Environment(trim_blocks=True, keep_trailing_newline=True)
    template = environment.from_string(TEMPLATE.read_text())
    return template.render(folder=folder, growth=growth, parameters=parameters, numbers=numbers)


def main() -> None:
    """Spread an export and print its program, or gather its outputs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="of the export")
    parser.add_argument("--outputs", action="store_true", help="gather what the program has written")
    args = parser.parse_args()
    if args.outputs:
        gather(args.folder)
    else:
        spread(args.folder)
        sys.stdout.write(program_for(args.folder))


if __name__ == "__main__":
    main()
