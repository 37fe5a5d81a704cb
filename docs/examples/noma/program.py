"""
Write the NOMA program of one update, for the folder of an export in NOMA's form:

    python docs/examples/noma/program.py FOLDER > update.noma

NOMA has no JSON, no loop over files and no names made at run time, so that the program names every file and every
tensor. `noma run update.noma` then writes FOLDER/outputs/, and `seal_outputs(FOLDER)` its sidecar.
"""

import json
import sys
from pathlib import Path


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


def program_for(folder: str) -> str:
    """The text of the program."""
    sidecar = json.loads((Path(folder) / "inputs.json").read_text())
    if sidecar["form"] != "noma":
        raise SystemExit(f"{folder} is in the form {sidecar['form']!r}: export it with form='noma'.")
    values, keys = sidecar["values"], {entry["name"]: entry["key"] for entry in sidecar["tensors"]}
    growth, groups = values["growth"], values["groups"]
    scalars = [entry["key"] for entry in sidecar["scalars"]]
    lines = [FUNCTIONS, "fn main() {"]

    def load(key):
        lines.append(f'    load_safetensors {key} = "{folder}/inputs/{key}.safetensors";')

    lines.append("    // Numbers come as tensors of shape [1].")
    used = {"clip_norm", "reset_m", "reset_v", "reset_t"}
    used |= {
        f"{key}_{n}" for n in range(1, len(groups) + 1) for key in ("lr", "beta1", "beta2", "eps", "weight_decay")
    }
    for key in (key for key in scalars if key in used):
        load(key)
    if growth is not None:
        old, new = growth["old_rank"], growth["new_rank"]
        lines += [
            "",
            "    // Growth: `realloc` keeps a flat prefix, wrong for B's columns; these products are right.",
            f"    let keep_rows = {literal([[float(i == j) for j in range(old)] for i in range(new)])};",
            f"    let place_rows = {literal([[float(i == old + j) for j in range(new - old)] for i in range(new)])};",
            f"    let keep_columns = {literal([[float(i == j) for j in range(new)] for i in range(old)])};",
        ]
    numbers = {name: place for place, name in enumerate(values["names"], start=1)}
    group_of = {name: n for n, group in enumerate(groups, start=1) for name in group["parameters"]}
    for name in values["names"]:
        n = f"{numbers[name]:04d}"
        lines += ["", f"    // {name}"]
        for letter in ("p", "m", "v", "t"):
            load(f"{letter}{n}")
        if f"gradients/{name}" in keys:
            load(f"g{n}")
        parts = name.split(".")
        if growth is not None and "lora_A" in parts:
            load(f"n{n}")
            lines.append(f"    p{n} = matmul(keep_rows, p{n}) + matmul(place_rows, n{n});")
            lines += [f"    {letter}{n} = matmul(keep_rows, {letter}{n});" for letter in ("m", "v")]
        elif growth is not None and "lora_B" in parts:
            lines += [f"    {letter}{n} = matmul({letter}{n}, keep_columns);" for letter in ("p", "m", "v")]
        lines += [
            f"    m{n} = m{n} * reset_m[0];",
            f"    v{n} = v{n} * reset_v[0];",
            f"    t{n} = t{n} * reset_t[0];",
        ]
    with_gradient = [name for name in values["names"] if f"gradients/{name}" in keys]
    squares = [f"sum(g{numbers[name]:04d} * g{numbers[name]:04d})" for name in with_gradient]
    lines += [
        "",
        "    // Clipping. `min` is not evaluated by the interpreter, so that an `if` decides.",
        "    let squares = 0.0;",
    ]
    lines += [f"    squares = squares + {square};" for square in squares]
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
        "    // Adam.",
    ]
    for name in with_gradient:
        n, k = f"{numbers[name]:04d}", group_of[name]
        decay = f"weight_decay_{k}[0]"
        lines.append(f"    g{n} = g{n} * factor;")
        if groups[k - 1]["decoupled"]:
            lines.append(f"    p{n} = p{n} * (1.0 - lr_{k}[0] * {decay});")
        else:
            lines.append(f"    g{n} = g{n} + {decay} * p{n};")
        lines += [
            f"    t{n} = t{n} + 1.0;",
            f"    m{n} = first_moment(m{n}, g{n}, beta1_{k}[0]);",
            f"    v{n} = second_moment(v{n}, g{n}, beta2_{k}[0]);",
            f"    p{n} = stepped(p{n}, m{n}, v{n}, t{n}[0], lr_{k}[0], beta1_{k}[0], beta2_{k}[0], eps_{k}[0]);",
        ]
    lines += ["", "    // Every tensor is saved as F64; the sidecar says what it was."]
    for name in values["names"]:
        for letter in ("p", "m", "v", "t"):
            key = f"{letter}{numbers[name]:04d}"
            lines.append(f'    save_safetensors {{ {key}: {key} }}, "{folder}/outputs/{key}.safetensors";')
    return "\n".join([*lines, "    return norm;", "}", ""])


if __name__ == "__main__":
    sys.stdout.write(program_for(sys.argv[1]))
