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

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from trl_prorl.interchange import UpdateInputs, UpdateOutputs, read, write
from trl_prorl.interchange.schemas import STATE, reset_factors


# The first letter of a key by what the tensor is of a parameter; the number is the parameter's.
LETTERS = {"parameters": "p", "gradients": "g", "exp_avg": "m", "exp_avg_sq": "v", "steps": "t", "new_rows": "n"}
FUNCTIONS = """\
// Adam's parts. The decay is AdamW's; a decay within the gradient is added where the gradient is loaded.
fn first_moment(m, g, beta1) {
    return beta1 * m + (1.0 - beta1) * g;
}

fn second_moment(v, g, beta2) {
    return beta2 * v + (1.0 - beta2) * g * g;
}

fn stepped(p, m, v, t, lr, beta1, beta2, eps) {
    let m_hat = m / (1.0 - beta1 ** t);
    let v_hat = v / (1.0 - beta2 ** t);
    return p - lr * m_hat / (sqrt(v_hat) + eps);
}
"""


def literal(rows):
    """A tensor as the language writes it."""
    return "tensor [" + ", ".join("[" + ", ".join(f"{value:.1f}" for value in row) + "]" for row in rows) + "]"


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
    on_m, on_v, clears = reset_factors(inputs.reset)
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


def program_for(folder: str) -> str:
    """The text of the program."""
    inputs = read(UpdateInputs, folder)
    growth = inputs.growth
    groups = inputs.groups
    lines = [FUNCTIONS, "fn main() {", "    // Numbers come as tensors of shape [1]."]
    used = {"clip_norm", "reset_m", "reset_v", "reset_t"}
    for n in range(1, len(groups) + 1):
        used.update(f"{key}_{n}" for key in ("lr", "beta1", "beta2", "eps", "weight_decay"))
    lines += [load_line(folder, key) for key in scalars_of(inputs) if key in used]
    if growth is not None:
        old = growth["old_rank"]
        new = growth["new_rank"]
        lines += [
            "",
            "    // Growth: `realloc` keeps a flat prefix, wrong for B's columns; these products are right.",
            f"    let keep_rows = {literal([[float(i == j) for j in range(old)] for i in range(new)])};",
            f"    let place_rows = {literal([[float(i == old + j) for j in range(new - old)] for i in range(new)])};",
            f"    let keep_columns = {literal([[float(i == j) for j in range(new)] for i in range(old)])};",
        ]
    numbers = {name: place for place, name in enumerate(inputs.names, start=1)}
    group_of = {name: n for n, group in enumerate(groups, start=1) for name in group["parameters"]}
    for name in inputs.names:
        n = f"{numbers[name]:04d}"
        lines += ["", f"    // {name}"]
        lines += [load_line(folder, f"{letter}{n}") for letter in ("p", "m", "v", "t")]
        if name in inputs.gradients:
            lines.append(load_line(folder, f"g{n}"))
        parts = name.split(".")
        if growth is not None and "lora_A" in parts:
            lines.append(load_line(folder, f"n{n}"))
            lines.append(f"    p{n} = matmul(keep_rows, p{n}) + matmul(place_rows, n{n});")
            lines += [f"    {letter}{n} = matmul(keep_rows, {letter}{n});" for letter in ("m", "v")]
        elif growth is not None and "lora_B" in parts:
            lines += [f"    {letter}{n} = matmul({letter}{n}, keep_columns);" for letter in ("p", "m", "v")]
        lines += [
            f"    m{n} = m{n} * reset_m[0];",
            f"    v{n} = v{n} * reset_v[0];",
            f"    t{n} = t{n} * reset_t[0];",
        ]
    with_gradient = [name for name in inputs.names if name in inputs.gradients]
    lines += clipping_lines([numbers[name] for name in with_gradient])
    lines.append("    // Adam.")
    for name in with_gradient:
        k = group_of[name]
        lines += adam_lines(f"{numbers[name]:04d}", k, decoupled=groups[k - 1]["decoupled"])
    lines += ["", "    // Every tensor is saved as F64; the sidecar says what it was."]
    for name in inputs.names:
        for letter in ("p", "m", "v", "t"):
            key = f"{letter}{numbers[name]:04d}"
            lines.append(f'    save_safetensors {{ {key}: {key} }}, "{folder}/outputs/{key}.safetensors";')
    return "\n".join([*lines, "    return norm;", "}", ""])


def load_line(folder: str, key: str) -> str:
    """The line that loads a tensor of the inputs."""
    return f'    load_safetensors {key} = "{folder}/inputs/{key}.safetensors";'


def clipping_lines(numbers: list[int]) -> list[str]:
    """The lines that compute the norm of the gradients of these tensors, and the factor that clips them."""
    lines = [
        "",
        "    // Clipping. `min` is not evaluated by the interpreter, so that an `if` decides.",
        "    let squares = 0.0;",
    ]
    lines += [f"    squares = squares + sum(g{number:04d} * g{number:04d});" for number in numbers]
    lines += [
        "    let norm = sqrt(squares);",
        "    let factor = 1.0;",
        "    if clip_norm[0] > 0.0 {",
        "        factor = clip_norm[0] / (norm + 0.000001);",
        "        if factor > 1.0 {",
        "            factor = 1.0;",
        "        }",
        "    }",
        "",
    ]
    return lines


def adam_lines(n: str, k: int, decoupled: bool) -> list[str]:
    """The lines that update tensor `n` by the settings of group `k`."""
    decay = f"weight_decay_{k}[0]"
    lines = [f"    g{n} = g{n} * factor;"]
    if decoupled:
        lines.append(f"    p{n} = p{n} * (1.0 - lr_{k}[0] * {decay});")
    else:
        lines.append(f"    g{n} = g{n} + {decay} * p{n};")
    lines += [
        f"    t{n} = t{n} + 1.0;",
        f"    m{n} = first_moment(m{n}, g{n}, beta1_{k}[0]);",
        f"    v{n} = second_moment(v{n}, g{n}, beta2_{k}[0]);",
        f"    p{n} = stepped(p{n}, m{n}, v{n}, t{n}[0], lr_{k}[0], beta1_{k}[0], beta2_{k}[0], eps_{k}[0]);",
    ]
    return lines


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
